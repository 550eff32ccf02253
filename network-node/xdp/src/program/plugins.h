/* What instances do, and the graph of them. */
#ifndef CSP_PLUGINS_H
#define CSP_PLUGINS_H

#include "maps.h"
#include "parse.h"

/* Blocks that have expired and are passed over; the daemon removes them once a second. */
#define EXPIRED_MAX 8

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

static __always_inline int is_blocked(struct scratch *scratch, enum kind kind, __u64 now)
{
	struct block_key *key = &scratch->block;
	void *list = bpf_map_lookup_elem(&blocks, &scratch->at);

	if (!list)
		return 0;
	key->length = 8 + (kind == PLAIN_V4 ? 32 : 128);
	key->family = kind == PLAIN_V4 ? 4 : 6;
	__builtin_memcpy(key->address, scratch->address, 16);
	for (int turn = 0; turn < EXPIRED_MAX; turn++) {
		struct block *block = bpf_map_lookup_elem(list, key);

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
		key->length = 8 + length - 1;
	}
	return 0;
}

static __always_inline void count_network(const struct instance *instance, struct state *state, struct scratch *scratch,
					  enum kind kind, __u32 len)
{
	struct network_key *key = &scratch->network;
	const __u8 *address = scratch->address;
	void *counts = bpf_map_lookup_elem(&networks, &scratch->at);
	__u32 bits_v4 = instance->length_v4;
	__u32 bits_v6 = instance->length_v6;

	if (!counts)
		return;
	/* Both are loaded: the compiler would choose between their offsets and add that to the pointer, which the verifier does not allow
	 * without CAP_PERFMON. */
	asm volatile("" : "+r"(bits_v4), "+r"(bits_v6));
	__u32 bits = kind == PLAIN_V4 ? bits_v4 : bits_v6;
	scratch->first.packets = 1;
	scratch->first.bytes = len;
	key->family = kind == PLAIN_V4 ? 4 : 6;
	if (kind == PLAIN_V4) {
		key->high = (__u64)bpf_ntohl(*(__u32 *)address) << 32;
		key->low = 0;
	} else {
		key->high = be64_at(address);
		key->low = be64_at(address + 8);
	}
	if (bits < 64) {
		key->high = bits ? key->high & ~0ULL << (64 - bits) : 0;
		key->low = 0;
	} else if (bits < 128) {
		key->low = bits > 64 ? key->low & ~0ULL << (128 - bits) : 0;
	}
	struct count *count = bpf_map_lookup_elem(counts, key);
	if (count)
		add(count, len);
	else if (bpf_map_update_elem(counts, key, &scratch->first, BPF_NOEXIST))
		add(&state->first, len);
}

struct packet {
	const struct config *config;
	struct totals *totals;
	struct scratch *scratch;
	__u8 *ip;
	/* An enum kind, in 64 bits: where the compiler spills it in place of a pointer, the verifier wants that overwritten as a whole. */
	__u64 kind;
	__u32 len;
};

/* Gives the packet to the supplied program of an instance; returns only if it does not run. */
static __always_inline int give(struct xdp_md *context, __u32 at, struct state *state, struct packet *packet)
{
	struct passage *passage = bpf_map_lookup_elem(&passages, &packet->scratch->zero);

	if (passage) {
		passage->at = at + 1;
		passage->table = packet->scratch->table;
		passage->port = packet->scratch->port;
		bpf_tail_call(context, &supplied, at);
		passage->at = 0;
	}
	tick(&state->dropped);
	tick(&packet->totals->broken);
	return XDP_ABORTED;
}

/* Runs the instances from `start` on. The graph has no cycles and its paths are at most HOPS_MAX long: csp-xdp checks that. */
static __always_inline int run(struct xdp_md *context, struct table *table, __u32 start, struct packet *packet)
{
	__u32 at = start;

	for (__u64 hop = 0; hop < HOPS_MAX; hop++) {
		if (at >= INSTANCES_MAX)
			break;
		const struct instance *instance = &table->instances[at & (INSTANCES_MAX - 1)];
		packet->scratch->at = at;
		struct state *state = bpf_map_lookup_elem(&states, &packet->scratch->at);
		__u32 next = instance->next[0];

		if (!state)
			break;
		add(&state->processed, packet->len);
		switch (instance->operation) {
		case DROP:
			goto drop;
		case REDIRECT:
			tick(&packet->totals->redirected);
			return bpf_redirect_map(&ports, instance->value, XDP_DROP);
		case COUNTER:
			copy_address(packet->scratch->address, packet->ip, packet->kind, instance->by_destination);
			count_network(instance, state, packet->scratch, packet->kind, packet->len);
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
		case SUPPLIED:
			return give(context, at, state, packet);
		case BLOCK_LIST:
			copy_address(packet->scratch->address, packet->ip, packet->kind, instance->by_destination);
			if (is_blocked(packet->scratch, packet->kind, now_ns(packet->config))) {
				add(&state->first, packet->len);
				goto drop;
			}
			break;
		}
		at = next;
		continue;
drop:
		tick(&state->dropped);
		tick(&packet->totals->dropped);
		return XDP_DROP;
	}
	tick(&packet->totals->passed);
	return XDP_PASS;
}

#endif
