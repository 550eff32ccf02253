/* Packet plug-ins at the driver. The program finds the rule that decides on a packet, by priority, as libcsp/classify does, and runs
 * the graph of instances that the rule leads to.
 *
 *   frame -> parse -> classify -+-> rule of level 1 -> instances -> XDP_PASS, XDP_DROP, XDP_REDIRECT
 *                    |          +-> rule of level 2, no rule -> XDP_PASS
 *                    +-> not plain: XDP_PASS, level 2 classifies it
 *
 * A packet is plain if its frame has no VLAN tag, it is no fragment, and has neither IPv4 options nor IPv6 extension headers. Level 2
 * knows which packets are plain (csp_classify::multifield::Parsed::is_plain), so that it does not process them again.
 *
 * A table is immutable: it is replaced as a whole, in the array of maps `tables`. Nothing of a packet is trusted; every loop has a
 * constant bound, which csp-xdp checks before it installs a table.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "level1.h"

#define ETHERNET_LEN 14
#define IPV4_LEN 20
#define IPV6_LEN 40
#define TCP_LEN 20
#define PROTOCOL_TCP 6
/* Beyond the flags octet: the packet has no flags. Beyond all ports: it has no ports. */
#define NO_FLAGS 0x100
#define NO_PORT 0x10000
#define STAYS (~0ULL)
/* Blocks that have expired and are passed over; the daemon removes them once a second. */
#define EXPIRED_MAX 8

/* Inner maps have sizes in place of types, whose definitions the compiler leaves out of the BTF. */
struct table_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, TABLE_LEN + TABLE_TAIL);
	__uint(max_entries, 1);
};

struct block_map {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(key_size, sizeof(struct block_key));
	__uint(value_size, sizeof(struct block));
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
};

struct network_map {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(key_size, sizeof(struct network_key));
	__uint(value_size, sizeof(struct count));
	__uint(max_entries, 1);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
	__array(values, struct table_map);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, INSTANCES_MAX);
	__array(values, struct block_map);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, INSTANCES_MAX);
	__array(values, struct network_map);
} networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct config);
	__uint(max_entries, 1);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct count);
	__uint(max_entries, RULES_MAX);
} rule_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct state);
	__uint(max_entries, INSTANCES_MAX);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct totals);
	__uint(max_entries, 1);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, PORTS_MAX);
} ports SEC(".maps");

/* A plain packet, in the words of libcsp/classify/src/multifield/words.rs. */
struct key {
	__u64 words[5];
	__u32 source_port;
	__u32 destination_port;
	__u32 flags;
};

enum kind { UNCLASSIFIED, PLAIN_V4, PLAIN_V6 };

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == 0 || protocol == 43 || protocol == 44 || protocol == 51 || protocol == 60 || protocol == 135 ||
	       protocol == 139 || protocol == 140;
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == 6 || protocol == 17 || protocol == 33 || protocol == 132 || protocol == 136;
}

/* Ports and flags of a header of `len` bytes; returns 0 if it contradicts itself. */
static __always_inline int parse_upper(__u8 *header, void *end, __u32 len, __u8 protocol, struct key *key)
{
	key->source_port = NO_PORT;
	key->destination_port = NO_PORT;
	key->flags = NO_FLAGS;
	if (!has_ports(protocol))
		return 1;
	if (len < 4 || (void *)(header + 4) > end)
		return 0;
	key->source_port = header[0] << 8 | header[1];
	key->destination_port = header[2] << 8 | header[3];
	if (protocol != PROTOCOL_TCP)
		return 1;
	if (len < TCP_LEN || (void *)(header + TCP_LEN) > end)
		return 0;
	__u32 header_len = (header[12] >> 4) * 4;
	if (header_len < TCP_LEN || header_len > len)
		return 0;
	key->flags = header[13];
	return 1;
}

static __always_inline __u64 rest_word(const struct key *key, __u32 port, __u8 protocol, __u8 dscp)
{
	__u64 source = key->source_port == NO_PORT ? 0 : key->source_port;
	__u64 destination = key->destination_port == NO_PORT ? 0 : key->destination_port;

	/* The direction's bits are 0: a packet that is received. */
	return source << 48 | destination << 32 | (__u64)(port & 0xffff) << 16 | (__u64)protocol << 8 | dscp;
}

static __always_inline enum kind parse_v4(__u8 *ip, void *end, __u32 len, __u32 port, struct key *key)
{
	__u32 *words = (__u32 *)ip;
	__u64 sum = 0;

	if ((void *)(ip + IPV4_LEN) > end || ip[0] != 0x45)
		return UNCLASSIFIED;
	/* The reserved bit, "more fragments" and the offset. */
	if ((ip[6] & 0xbf) || ip[7])
		return UNCLASSIFIED;
	__u32 total = ip[2] << 8 | ip[3];
	if (total < IPV4_LEN || ETHERNET_LEN + total > len)
		return UNCLASSIFIED;
	for (int at = 0; at < 5; at++)
		sum += words[at];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	if (sum != 0xffff)
		return UNCLASSIFIED;
	if (!parse_upper(ip + IPV4_LEN, end, total - IPV4_LEN, ip[9], key))
		return UNCLASSIFIED;
	key->words[0] = (__u64)bpf_ntohl(words[3]) << 32 | bpf_ntohl(words[4]);
	key->words[1] = rest_word(key, port, ip[9], ip[1] >> 2);
	return PLAIN_V4;
}

static __always_inline __u64 be64_at(const __u8 *at)
{
	const __u32 *words = (const __u32 *)at;

	return (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
}

static __always_inline enum kind parse_v6(__u8 *ip, void *end, __u32 frame_len, __u32 port, struct key *key)
{
	if ((void *)(ip + IPV6_LEN) > end || ip[0] >> 4 != 6 || is_extension(ip[6]))
		return UNCLASSIFIED;
	__u32 len = ip[4] << 8 | ip[5];
	if (ETHERNET_LEN + IPV6_LEN + len > frame_len)
		return UNCLASSIFIED;
	if (!parse_upper(ip + IPV6_LEN, end, len, ip[6], key))
		return UNCLASSIFIED;
	key->words[0] = be64_at(ip + 8);
	key->words[1] = be64_at(ip + 16);
	key->words[2] = be64_at(ip + 24);
	key->words[3] = be64_at(ip + 32);
	key->words[4] = rest_word(key, port, ip[6], ((ip[0] << 4 | ip[1] >> 4) & 0xff) >> 2);
	return PLAIN_V6;
}

/* The port of an interface, if the frame is for it: PORTS_MAX if not. */
static __always_inline __u32 port_of(const struct config *config, __u32 ifindex, const __u8 *destination)
{
	for (__u32 at = 0; at < PORTS_MAX; at++) {
		const struct port *port = &config->ports[at];

		if (port->ifindex != ifindex)
			continue;
		if (destination[0] & 1)
			return at;
		for (int byte = 0; byte < 6; byte++)
			if (port->mac[byte] != destination[byte])
				return PORTS_MAX;
		return at;
	}
	return PORTS_MAX;
}

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

static __always_inline void add(struct count *count, __u32 len)
{
	count->packets++;
	count->bytes += len;
}

static __always_inline __u64 now_ns(const struct config *config)
{
	return config->now ? config->now : bpf_ktime_get_ns();
}

/* A token bucket (RFC 2697 with one rate and one burst). Returns whether the packet conforms. */
static __always_inline int police(const struct instance *instance, struct state *state, __u64 now, __u32 len)
{
	__u64 cost = (__u64)len * 8000000000ULL;

	if (!state->filled) {
		state->tokens = instance->burst;
	} else if (now > state->filled) {
		__u64 since = now - state->filled;

		if (since >= instance->fill_ns)
			state->tokens = instance->burst;
		else
			state->tokens += since * instance->rate;
	}
	if (state->tokens > instance->burst)
		state->tokens = instance->burst;
	if (now > state->filled)
		state->filled = now;
	if (cost > state->tokens) {
		add(&state->second, len);
		return 0;
	}
	state->tokens -= cost;
	add(&state->first, len);
	return 1;
}

/* Sets the codepoint; ECN stays. The IPv4 header checksum is updated (RFC 1624, equation 3). */
static __always_inline void mark(__u8 *ip, enum kind kind, __u32 dscp)
{
	if (kind == PLAIN_V4) {
		__u32 old = ip[0] << 8 | ip[1];
		__u32 new = ip[0] << 8 | (dscp << 2 & 0xfc) | (ip[1] & 3);
		__u32 sum = (~(ip[10] << 8 | ip[11]) & 0xffff) + (~old & 0xffff) + new;

		sum = (sum & 0xffff) + (sum >> 16);
		sum = ~((sum & 0xffff) + (sum >> 16)) & 0xffff;
		ip[1] = new;
		ip[10] = sum >> 8;
		ip[11] = sum;
	} else {
		__u32 class = (dscp << 2 & 0xfc) | (ip[1] >> 4 & 3);

		ip[0] = 0x60 | class >> 4;
		ip[1] = class << 4 | (ip[1] & 0xf);
	}
}

/* Copies source or destination as it lies in the packet. Each branch has constant offsets, and the barriers keep the compiler from
 * making one of them: the verifier allows no others without CAP_PERFMON. */
static __always_inline void copy_address(__u8 *to, const __u8 *ip, enum kind kind, int destination)
{
	if (kind == PLAIN_V4 && destination) {
		__builtin_memcpy(to, ip + 16, 4);
		asm volatile("" ::: "memory");
	} else if (kind == PLAIN_V4) {
		__builtin_memcpy(to, ip + 12, 4);
		asm volatile("" ::: "memory");
	} else if (destination) {
		__builtin_memcpy(to, ip + 24, 16);
		asm volatile("" ::: "memory");
	} else {
		__builtin_memcpy(to, ip + 8, 16);
		asm volatile("" ::: "memory");
	}
}

static __always_inline int is_blocked(__u32 at, const __u8 *address, enum kind kind, __u64 now)
{
	struct block_key key = {};
	void *list = bpf_map_lookup_elem(&blocks, &at);

	if (!list)
		return 0;
	key.length = 8 + (kind == PLAIN_V4 ? 32 : 128);
	key.family = kind == PLAIN_V4 ? 4 : 6;
	__builtin_memcpy(key.address, address, 16);
	for (int turn = 0; turn < EXPIRED_MAX; turn++) {
		struct block *block = bpf_map_lookup_elem(list, &key);

		if (!block)
			return 0;
		if (block->until > now) {
			__sync_fetch_and_add(&block->packets, 1);
			return 1;
		}
		/* Behind one that has expired a shorter one may hold. */
		__u32 length = block->length;
		if (!length || length > 128)
			return 0;
		key.length = 8 + length - 1;
	}
	return 0;
}

static __always_inline void count_network(const struct instance *instance, __u32 at, struct state *state, const __u8 *address,
					  enum kind kind, __u32 len)
{
	struct network_key key = {};
	struct count first;
	void *counts = bpf_map_lookup_elem(&networks, &at);
	__u32 bits = kind == PLAIN_V4 ? instance->length_v4 : instance->length_v6;

	if (!counts)
		return;
	first.packets = 1;
	first.bytes = len;
	key.family = kind == PLAIN_V4 ? 4 : 6;
	if (kind == PLAIN_V4) {
		key.high = (__u64)bpf_ntohl(*(__u32 *)address) << 32;
	} else {
		key.high = be64_at(address);
		key.low = be64_at(address + 8);
	}
	if (bits < 64) {
		key.high = bits ? key.high & ~0ULL << (64 - bits) : 0;
		key.low = 0;
	} else if (bits < 128) {
		key.low = bits > 64 ? key.low & ~0ULL << (128 - bits) : 0;
	}
	struct count *count = bpf_map_lookup_elem(counts, &key);
	if (count)
		add(count, len);
	else if (bpf_map_update_elem(counts, &key, &first, BPF_NOEXIST))
		add(&state->first, len);
}

struct packet {
	const struct config *config;
	struct totals *totals;
	__u8 *ip;
	enum kind kind;
	__u32 len;
};

/* Runs the instances from `start` on. The graph has no cycles and its paths are at most HOPS_MAX long: csp-xdp checks that. */
static __always_inline int run(struct table *table, __u32 start, struct packet *packet)
{
	__u32 at = start;

	for (int hop = 0; hop < HOPS_MAX; hop++) {
		if (at >= INSTANCES_MAX)
			break;
		const struct instance *instance = &table->instances[at & (INSTANCES_MAX - 1)];
		struct state *state = bpf_map_lookup_elem(&states, &at);
		__u8 address[16] = {};
		__u32 next = instance->next[0];

		if (!state)
			break;
		add(&state->processed, packet->len);
		switch (instance->operation) {
		case DROP:
			goto drop;
		case REDIRECT:
			packet->totals->redirected++;
			return bpf_redirect_map(&ports, instance->value, XDP_DROP);
		case COUNTER:
			copy_address(address, packet->ip, packet->kind, instance->by_destination);
			count_network(instance, at, state, address, packet->kind, packet->len);
			break;
		case POLICER:
			if (!police(instance, state, now_ns(packet->config), packet->len)) {
				if (!instance->exceed_next)
					goto drop;
				next = instance->next[1];
			}
			break;
		case DSCP:
			mark(packet->ip, packet->kind, instance->value);
			break;
		case BLOCK_LIST:
			copy_address(address, packet->ip, packet->kind, instance->by_destination);
			if (is_blocked(at, address, packet->kind, now_ns(packet->config))) {
				add(&state->first, packet->len);
				goto drop;
			}
			break;
		}
		at = next;
		continue;
drop:
		state->dropped++;
		packet->totals->dropped++;
		return XDP_DROP;
	}
	packet->totals->passed++;
	return XDP_PASS;
}

static __always_inline int level1(struct xdp_md *context)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct key key;
	struct search search = {};
	struct packet packet = {};
	__u32 zero = 0;
	struct table *table = bpf_map_lookup_elem(&tables, &zero);

	search.key = &key;
	search.hit.rank = NONE;
	search.hit.start = OUT;
	search.next = NONE;
	packet.config = bpf_map_lookup_elem(&config, &zero);
	packet.totals = bpf_map_lookup_elem(&totals, &zero);
	if (!table || !packet.config || !packet.totals)
		return XDP_PASS;
	table = bpf_map_lookup_elem(table, &zero);
	if (!table || (void *)(data + ETHERNET_LEN) > end)
		return XDP_PASS;
	__u32 port = port_of(packet.config, context->ingress_ifindex, data);
	if (port >= PORTS_MAX)
		return XDP_PASS;
	packet.totals->seen++;
	search.table = table;
	packet.ip = data + ETHERNET_LEN;
	/* Pointers are compared with constant offsets only: without CAP_PERFMON the verifier allows no others. */
	packet.len = bpf_xdp_get_buff_len(context);
	if (data[12] == 0x08 && data[13] == 0x00) {
		packet.kind = parse_v4(packet.ip, end, packet.len, port, &key);
		if (packet.kind == PLAIN_V4)
			find(&search, 0);
	} else if (data[12] == 0x86 && data[13] == 0xdd) {
		packet.kind = parse_v6(packet.ip, end, packet.len, port, &key);
		if (packet.kind == PLAIN_V6)
			find(&search, 1);
	}
	if (packet.kind == UNCLASSIFIED) {
		packet.totals->unclassified++;
		return XDP_PASS;
	}
	if (search.hit.rank == NONE) {
		packet.totals->unmatched++;
		return XDP_PASS;
	}
	if (search.hit.start >= INSTANCES_MAX) {
		packet.totals->level2++;
		return XDP_PASS;
	}
	/* The shortest plain packet of its family is there; the verifier is shown it again. */
	if (packet.kind == PLAIN_V4) {
		if ((void *)(packet.ip + IPV4_LEN) > end)
			return XDP_PASS;
		asm volatile("" ::: "memory");
	} else if ((void *)(packet.ip + IPV6_LEN) > end) {
		return XDP_PASS;
	}
	struct count *count = bpf_map_lookup_elem(&rule_counts, &search.hit.slot);
	if (count)
		add(count, packet.len);
	return run(table, search.hit.start, &packet);
}

SEC("xdp")
int csp_level1(struct xdp_md *context)
{
	return level1(context);
}

char level1_license[] SEC("license") = "Dual MIT/GPL";
