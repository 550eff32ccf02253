/* Packet plug-ins of level 1 that administrators supply, version 1: eBPF objects, in docs/plugins.md, "eBPF objects".
 *
 *   clang -O2 -g -target bpf -mcpu=v3 -I /usr/include/$(uname -m)-linux-gnu -I network-node/xdp/include -c filter.c -o filter.o
 *
 * An object has one program, in the section "xdp", and says with CSP_XDP how many outputs it has. The program ends with
 * csp_next or csp_drop; what it returns otherwise is the kernel's action for the packet, and no further plug-in sees it.
 */
#ifndef CSP_XDP_H
#define CSP_XDP_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define CSP_OUTPUTS_MAX 8
#define CSP_NUMBERS_MAX 8

/* The one map that the object has in common with the node. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, CSP_OUTPUTS_MAX + 1);
} csp_continue SEC(".maps");

struct csp_declaration {
	__u32 abi;
	__u32 outputs;
	/* The parameters are numbers within these; both 0: they are text. */
	__u64 least;
	__u64 most;
};

/* The object has so many outputs, 1 to 8. */
#define CSP_XDP(OUTPUTS) CSP_XDP_NUMBERS(OUTPUTS, 0, 0)
/* The same, and its parameters are numbers from LEAST to MOST. */
#define CSP_XDP_NUMBERS(OUTPUTS, LEAST, MOST) \
	const struct csp_declaration csp_declaration SEC("csp") = {1, OUTPUTS, LEAST, MOST}

/* What the policy has in `settings: {parameters: ...}`. */
struct csp_parameters {
	/* Bytes of the text. */
	__u32 length;
	/* The decimal numbers in it that spaces separate, up to the first word that is none. */
	__u32 count;
	__u64 numbers[CSP_NUMBERS_MAX];
	char text[256];
};

/* Declares that the object has parameters. They change between two packets. */
#define CSP_PARAMETERS                                         \
	struct {                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY);              \
		__type(key, __u32);                            \
		__type(value, struct csp_parameters);          \
		__uint(max_entries, 3);                        \
		__uint(map_flags, BPF_F_RDONLY_PROG);          \
	} csp_parameters SEC(".maps");                         \
                                                               \
	/* 0 only where the verifier wants to see it checked. */ \
	static __attribute__((unused)) __always_inline const struct csp_parameters *csp_read_parameters(void) \
	{                                                                                          \
		__u32 at = 2;                                                                      \
		const struct csp_parameters *current = bpf_map_lookup_elem(&csp_parameters, &at); \
                                                                                                   \
		if (!current)                                                                      \
			return 0;                                                                  \
		at = current->length & 1;                                                          \
		return bpf_map_lookup_elem(&csp_parameters, &at);                                  \
	}

/* Declares counters, at most 64, that `cspctl plugin call NAME read` shows. */
#define CSP_COUNTERS(COUNT)                              \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
		__type(key, __u32);                      \
		__type(value, __u64);                    \
		__uint(max_entries, COUNT);              \
	} csp_counters SEC(".maps");                     \
                                                         \
	static __attribute__((unused)) __always_inline void csp_count(__u32 at) \
	{                                                                \
		__u64 *counter = bpf_map_lookup_elem(&csp_counters, &at); \
                                                                         \
		if (counter)                                             \
			++*counter;                                      \
	}

/* The packet goes to the instance that is connected to the output; without one it leaves the plug-ins and is routed. */
static __always_inline int csp_next(struct xdp_md *context, const __u32 output)
{
	bpf_tail_call(context, &csp_continue, output);
	return XDP_ABORTED;
}

/* The packet is dropped, and counted as the plug-in's. */
static __always_inline int csp_drop(struct xdp_md *context)
{
	bpf_tail_call(context, &csp_continue, CSP_OUTPUTS_MAX);
	return XDP_ABORTED;
}

#endif
