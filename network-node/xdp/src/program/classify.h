/* Keys to rules: the hash tables of a table, which src/layout.rs writes. */
#ifndef CSP_CLASSIFY_H
#define CSP_CLASSIFY_H

#include "parse.h"

/* Bounds a number by a mask. The compiler must not derive the bound from elsewhere: the verifier sees this mask, and with it needs no barrier
 * against speculation as it does behind a branch. */
static __always_inline __u32 masked(__u32 number, __u32 mask)
{
	number &= mask;
	asm volatile("" : "+r"(number));
	return number & mask;
}

static __always_inline void *at(void *table, __u32 offset)
{
	return table + masked(offset, TABLE_LEN - 1);
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

/* What a step of a look-up gets. */
struct search {
	struct table *table;
	struct lookup *lookup;
};

/* One step of a look-up: probes the next hash table, if the last chain has ended, and compares one entry. Returns 1 at the end. */
#define STEP(NAME, ENTRY, TUPLES, WORDS)                                                                                      \
	static long NAME(__u32 step, struct search *search)                                                                   \
	{                                                                                                                     \
		struct table *table = search->table;                                                                          \
		struct lookup *lookup = search->lookup;                                                                       \
		const struct key *key = &lookup->key;                                                                         \
                                                                                                                              \
		if (lookup->next == NONE) {                                                                                   \
			__u32 following = lookup->following;                                                                  \
                                                                                                                              \
			if (following >= TUPLES_MAX)                                                                          \
				return 1;                                                                                     \
			const struct tuple *tuple = &table->TUPLES[masked(following, TUPLES_MAX - 1)];                        \
			if (tuple->best >= lookup->hit.rank)                                                                  \
				return 1;                                                                                     \
			lookup->following = tuple->following;                                                                 \
			lookup->next = *(__u32 *)at(table, tuple->buckets + (hash_of(key, tuple, WORDS) & tuple->bucket_mask) * 4); \
			if (lookup->next == NONE)                                                                             \
				return 0;                                                                                     \
		}                                                                                                             \
		const struct ENTRY *entry = at(table, lookup->next);                                                          \
		__u64 differs = 0;                                                                                            \
                                                                                                                              \
		if (entry->conditions.rank >= lookup->hit.rank) {                                                             \
			lookup->next = NONE;                                                                                  \
			return 0;                                                                                             \
		}                                                                                                             \
		lookup->next = entry->conditions.next;                                                                        \
		for (int word = 0; word < WORDS; word++)                                                                      \
			differs |= (key->words[word] ^ entry->value[word]) & entry->mask[word];                               \
		if (!differs && conditions_match(&entry->conditions, key)) {                                                  \
			lookup->hit.rank = entry->conditions.rank;                                                            \
			lookup->hit.slot = entry->conditions.slot;                                                            \
			lookup->hit.start = entry->conditions.start;                                                          \
			lookup->next = NONE;                                                                                  \
		}                                                                                                             \
		return 0;                                                                                                     \
	}

STEP(step_v4, entry_v4, v4, 2)
STEP(step_v6, entry_v6, v6, 5)

/* Finds the first rule for the key. */
static __always_inline void find(struct table *table, struct lookup *lookup, const int family)
{
	struct search search = { table, lookup };

	lookup->hit.rank = NONE;
	lookup->hit.start = OUT;
	lookup->next = NONE;
	lookup->following = table->first[family];
	if (family)
		bpf_loop(STEPS_MAX, step_v6, &search, 0);
	else
		bpf_loop(STEPS_MAX, step_v4, &search, 0);
}

#endif
