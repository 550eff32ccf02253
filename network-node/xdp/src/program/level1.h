/* What the program and csp-xdp (src/layout.rs) both know: the table of rules and instances, and the state of instances.
 * A change of a structure is a change of LAYOUT_VERSION in src/lib.rs. Numbers are in the host's byte order.
 */
#ifndef CSP_LEVEL1_H
#define CSP_LEVEL1_H

#include <linux/types.h>

#define PORTS_MAX 16
#define HAS_SOCKETS 0x8000
#define NO_RULES 0x4000
#define TAKES_MATCHED 0x2000
#define TAKES_ALL 0x1000
#define PORT_MASK (TAKES_ALL - 1)
#define QUEUES_MAX 64
#define ADDRESSES_MAX 32768
#define RULES_MAX 16384
#define INSTANCES_MAX 64
#define TUPLES_MAX 64
#define STEPS_MAX 256
#define HOPS_MAX 8
#define TABLES 2
/* Outputs of a supplied program; the number behind them says that it drops the packet. */
#define OUTPUTS_MAX 8
#define VERDICTS (OUTPUTS_MAX + 1)

/* Offsets into the table are masked with TABLE_LEN - 1; TABLE_TAIL is the longest structure that may begin at the last one. */
#define TABLE_LEN (4 << 20)
#define TABLE_TAIL 128

#define NONE 0xffffffff
#define OUT 0xff

enum operation { NO_OP, DROP, REDIRECT, COUNTER, POLICER, DSCP, BLOCK_LIST, SUPPLIED };

/* An instance of a plug-in. */
struct instance {
	__u8 operation;
	/* By output: an instance, or OUT. */
	__u8 next[2];
	/* Of the counter and the block list: compares the destination. */
	__u8 by_destination;
	/* Of dscp: the codepoint; of redirect: the port. */
	__u32 value;
	/* Of the policer: units a nanosecond, units that fit the bucket, nanoseconds that fill it. A byte has 8 * 10^9 units. */
	__u64 rate;
	__u64 burst;
	__u64 fill_ns;
	/* Of the policer: what exceeds goes to output 1. */
	__u8 exceed_next;
	/* Of the counter: lengths of prefixes. */
	__u8 length_v4;
	__u8 length_v6;
	__u8 unused[5];
	/* Of a supplied program: by output, an instance or OUT. */
	__u8 outputs[OUTPUTS_MAX];
	__u8 unused_too[16];
};

/* A hash table for one mask. */
struct tuple {
	__u64 mask[5];
	/* Least rank of its rules. */
	__u32 best;
	/* Offset of the buckets; each is the offset of an entry, or NONE. */
	__u32 buckets;
	__u32 bucket_mask;
	/* The table that is probed next; TUPLES_MAX: none. */
	__u32 following;
	__u32 unused[2];
};

/* What an entry has behind its words. */
struct conditions {
	__u16 source_low;
	__u16 source_high;
	__u16 destination_low;
	__u16 destination_high;
	/* The rule's place in the order of all, and its counter. */
	__u16 rank;
	__u16 slot;
	/* Instance, or OUT: the rule is level 2's. */
	__u8 start;
	/* Bits 0 and 1: every source port, every destination port, or none, matches. */
	__u8 ports_any;
	__u8 flags_value;
	__u8 flags_mask;
	/* Offset of the next entry of the chain, by rising rank; or NONE. */
	__u32 next;
};

struct entry_v4 {
	__u64 value[2];
	__u64 mask[2];
	struct conditions conditions;
	__u32 unused[3];
};

struct entry_v6 {
	__u64 value[5];
	__u64 mask[5];
	struct conditions conditions;
	__u32 unused[7];
};

/* The fixed part of a table; buckets and entries follow. */
struct table {
	/* The hash tables that are probed first, of IPv4 and of IPv6; TUPLES_MAX: there is none. */
	__u32 first[2];
	__u32 unused[14];
	struct instance instances[INSTANCES_MAX];
	struct tuple v4[TUPLES_MAX];
	struct tuple v6[TUPLES_MAX];
};

struct port {
	__u32 ifindex;
	__u8 mac[6];
	/* The port's number; with HAS_SOCKETS if the node's frames go to AF_XDP sockets, with NO_RULES if level 1 has no rules, with
	 * TAKES_MATCHED if the sockets also get what rules of level 2 decide on, with TAKES_ALL if they get every IP packet. */
	__u16 number;
};

struct config {
	/* In tests: the time, in place of the kernel's. */
	__u64 now;
	struct port ports[PORTS_MAX];
	/* The table in force, by its place in `tables`. */
	__u32 table;
	__u32 unused;
};

struct count {
	__u64 packets;
	__u64 bytes;
};

/* Of an instance, by processor. */
struct state {
	struct count processed;
	__u64 dropped;
	/* Of the policer; filled is 0 before the first packet. */
	__u64 tokens;
	__u64 filled;
	/* Conforming packets of the policer; dropped ones of the block list; those of no network of the counter; those that a supplied
	 * program has given back. */
	struct count first;
	/* Exceeding packets of the policer. */
	struct count second;
};

/* By processor: what became of packets. */
struct totals {
	__u64 seen;
	__u64 unclassified;
	__u64 unmatched;
	__u64 level2;
	__u64 passed;
	__u64 dropped;
	__u64 redirected;
	/* Dropped, since a supplied program did not run, gave back what it was not given, or left no packet of the next instance's kind. */
	__u64 broken;
};

/* By processor: a packet that a supplied program has. */
struct passage {
	/* The instance, plus 1; 0: there is none. */
	__u32 at;
	/* The table that led it there. */
	__u32 table;
	/* Number of the port, with its flags. */
	__u32 port;
	/* What the program says: an output, or OUTPUTS_MAX for a drop. */
	__u32 output;
};

/* Keys of a block list: the first byte is 4 or 6, the address follows. */
struct block_key {
	__u32 length;
	__u8 family;
	__u8 address[16];
	__u8 unused[3];
};

struct block {
	/* Nanoseconds of CLOCK_MONOTONIC; all ones: it stays. */
	__u64 until;
	__u64 packets;
	/* Bits of the address that are compared. */
	__u32 length;
	char from[44];
};

/* An address of the node: the family is 4 or 6. */
struct address_key {
	__u32 family;
	__u8 address[16];
};

/* Keys of a counter: the family, and the network's first and second 64 bits. */
struct network_key {
	__u64 family;
	__u64 high;
	__u64 low;
};

/* A plain packet, in the words of libcsp/classify/src/multifield/words.rs. */
struct key {
	__u64 words[5];
	__u32 source_port;
	__u32 destination_port;
	__u32 flags;
};

/* The rule that was found. */
struct hit {
	__u32 rank;
	__u32 slot;
	__u32 start;
};

/* A look-up: what it looks for, the best rule so far, and where it is. */
struct lookup {
	struct key key;
	struct hit hit;
	/* Offset of the next entry of a chain, or NONE. */
	__u32 next;
	/* The hash table that is probed next. */
	__u32 following;
};

/* What a packet needs on its way. It is in a map and not on the stack: behind each store to the stack the kernel puts a barrier against
 * speculation if the program was loaded without CAP_PERFMON, and there it allows no store that overlaps a pointer of earlier use. */
struct scratch {
	struct lookup lookup;
	/* The key of maps with one value. */
	__u32 zero;
	/* The table in force, by its place; the port's number, with its flags; the instance that the packet is at. */
	__u32 table;
	__u32 port;
	__u32 at;
	/* The address that an instance looks at, and keys of its tables. */
	__u8 address[16];
	struct block_key block;
	struct network_key network;
	struct count first;
	struct address_key owned;
};

#endif
