/* Keys to rules: the hash tables of a table, which src/layout.rs writes. */
#ifndef CSP_CLASSIFY_H
#define CSP_CLASSIFY_H

#include "parse.h"

static __always_inline void *at(void *table, __u32 offset)
{
	offset &= TABLE_LEN - 1;
	/* The compiler must not derive the bound from elsewhere: the verifier sees this mask. */
	asm volatile("" : "+r"(offset));
	offset &= TABLE_LEN - 1;
	return table + offset;
}

/* As `hash` of src/layout.rs. Rules choose the buckets, packets only which of them they hit. */

static __always_inline __u32 hash_of(const struct key *key, const struct tuple *tuple, const int words)
{
	__u64 hash = 0;

	for (int word = 0; word < words; word++) {
		hash = (hash ^ (key->words[word] & tuple->mask[word])) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	return hash >> 32;
}

static __always_inline int conditions_match(const struct conditions *has, const struct key *key)
{
	__u32 compared = has->flags_mask ? has->flags_mask | NO_FLAGS : 0;

	if ((key->flags & compared) != has->flags_value)
		return 0;
	if (!(has->ports_any & 1) && (key->source_port < has->source_low || key->source_port > has->source_high))
		return 0;
	if (!(has->ports_any & 2) &&
	    (key->destination_port < has->destination_low || key->destination_port > has->destination_high))
		return 0;
	return 1;
}

struct hit {
	__u32 rank;
	__u32 slot;
	__u32 start;
};

/* A look-up: what it looks for, the best rule so far, and where it is. */
struct search {
	struct table *table;
	const struct key *key;
	struct hit hit;
	/* Offset of the next entry of a chain, or NONE. */
	__u32 next;
	/* The hash table that is probed next. */
	__u32 following;
};

/* One step of a look-up: probes the next hash table, if the last chain has ended, and compares one entry. Returns 1 at the end. */
#define STEP(NAME, ENTRY, TUPLES, WORDS)                                                                                      \
	static long NAME(__u32 step, struct search *search)                                                                   \
	{                                                                                                                     \
		struct table *table = search->table;                                                                          \
		const struct key *key = search->key;                                                                          \
                                                                                                                              \
		if (search->next == NONE) {                                                                                   \
			__u32 following = search->following;                                                                  \
                                                                                                                              \
			if (following >= TUPLES_MAX)                                                                          \
				return 1;                                                                                     \
			const struct tuple *tuple = &table->TUPLES[following];                                                \
			if (tuple->best >= search->hit.rank)                                                                  \
				return 1;                                                                                     \
			search->following = tuple->following;                                                                 \
			search->next = *(__u32 *)at(table, tuple->buckets + (hash_of(key, tuple, WORDS) & tuple->bucket_mask) * 4); \
			if (search->next == NONE)                                                                             \
				return 0;                                                                                     \
		}                                                                                                             \
		const struct ENTRY *entry = at(table, search->next);                                                          \
		__u64 differs = 0;                                                                                            \
                                                                                                                              \
		if (entry->conditions.rank >= search->hit.rank) {                                                             \
			search->next = NONE;                                                                                  \
			return 0;                                                                                             \
		}                                                                                                             \
		search->next = entry->conditions.next;                                                                        \
		for (int word = 0; word < WORDS; word++)                                                                      \
			differs |= (key->words[word] ^ entry->value[word]) & entry->mask[word];                               \
		if (!differs && conditions_match(&entry->conditions, key)) {                                                  \
			search->hit.rank = entry->conditions.rank;                                                            \
			search->hit.slot = entry->conditions.slot;                                                            \
			search->hit.start = entry->conditions.start;                                                          \
			search->next = NONE;                                                                                  \
		}                                                                                                             \
		return 0;                                                                                                     \
	}

STEP(step_v4, entry_v4, v4, 2)
STEP(step_v6, entry_v6, v6, 5)

static __always_inline void find(struct search *search, const int family)
{
	search->following = search->table->first[family];
	if (family)
		bpf_loop(STEPS_MAX, step_v6, search, 0);
	else
		bpf_loop(STEPS_MAX, step_v4, search, 0);
}

#endif
