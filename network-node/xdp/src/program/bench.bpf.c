/* The program of level 1 behind one that writes another header into the packet each time: BPF_PROG_TEST_RUN repeats one packet, and
 * what is repeated lies in the processor's caches. The time that the writing takes is measured by csp_headers alone.
 */
#include "level1.bpf.c"

#define HEADERS_MAX 65536
#define HEADER_LEN 74

struct header {
	__u8 bytes[80];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct header);
	__uint(max_entries, HEADERS_MAX);
} headers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} turn SEC(".maps");

static __always_inline int write_next(struct xdp_md *context)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u32 zero = 0;
	__u32 *at = bpf_map_lookup_elem(&turn, &zero);

	if (!at || (void *)(data + HEADER_LEN) > end)
		return 0;
	__u32 index = *at & (HEADERS_MAX - 1);
	*at = index + 1;
	struct header *header = bpf_map_lookup_elem(&headers, &index);
	if (!header)
		return 0;
	__builtin_memcpy(data, header->bytes, HEADER_LEN);
	return 1;
}

SEC("xdp")
int csp_headers(struct xdp_md *context)
{
	return write_next(context) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int csp_measured(struct xdp_md *context)
{
	return write_next(context) ? level1(context) : XDP_ABORTED;
}
