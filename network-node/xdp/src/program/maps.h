/* The maps of the program. csp-xdp opens them by name (src/driver.rs, MAPS). */
#ifndef CSP_MAPS_H
#define CSP_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "level1.h"

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
	__uint(max_entries, TABLES);
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

/* Supplied programs, by instance. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, INSTANCES_MAX);
} supplied SEC(".maps");

/* The programs by which supplied ones give a packet back, by what they say: include/csp_xdp.h declares it, too. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, VERDICTS);
} csp_continue SEC(".maps");

/* The program that goes on with the graph. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} resume SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct passage);
	__uint(max_entries, 1);
} passages SEC(".maps");

/* AF_XDP sockets, by port and queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, PORTS_MAX *QUEUES_MAX);
} sockets SEC(".maps");

/* The addresses that the node answers for; values mean nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct address_key);
	__type(value, __u32);
	__uint(max_entries, ADDRESSES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} owned SEC(".maps");

/* Of the packet that a processor has: what would lie on the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct scratch);
	__uint(max_entries, 1);
} scratches SEC(".maps");

/* Adds one to a counter. The barrier keeps the compiler from making one addition at a chosen offset of several: see parse.h. */
static __always_inline void tick(__u64 *counter)
{
	++*counter;
	asm volatile("" ::: "memory");
}

#endif
