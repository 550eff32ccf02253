/* Drops DNS queries by UDP over IPv4 that are longer than the first parameter, in bytes of UDP payload (512 without): what misuses DNS as a
 * tunnel is. A source with as many such queries as the second parameter (never without) has all its further queries led to output 1.
 *
 * Counters: 0 queries, 1 long ones, 2 those of sources that have had too many.
 */
#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "csp_xdp.h"

CSP_XDP_NUMBERS(2, 1, 65535);
CSP_PARAMETERS
CSP_COUNTERS(3)

/* Long queries by source; the least recently seen source gives way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 16384);
} sources SEC(".maps");

SEC("xdp")
int dns_length(struct xdp_md *context)
{
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = (void *)(long)context->data;
	struct iphdr *ip = (void *)(ethernet + 1);
	/* The packet is plain: there are no options. */
	struct udphdr *udp = (void *)(ip + 1);
	const struct csp_parameters *parameters = csp_read_parameters();
	__u64 one = 1;

	if (!parameters || (void *)(udp + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP ||
	    udp->dest != bpf_htons(53))
		return csp_next(context, 0);
	csp_count(0);
	__u32 source = ip->saddr;
	__u64 longest = parameters->count ? parameters->numbers[0] : 512;
	__u64 *known = bpf_map_lookup_elem(&sources, &source);

	if (known && parameters->count > 1 && *known >= parameters->numbers[1]) {
		csp_count(2);
		return csp_next(context, 1);
	}
	if (bpf_ntohs(udp->len) <= sizeof *udp + longest)
		return csp_next(context, 0);
	csp_count(1);
	if (known)
		__sync_fetch_and_add(known, 1);
	else
		bpf_map_update_elem(&sources, &source, &one, BPF_ANY);
	return csp_drop(context);
}

char module_license[] SEC("license") = "Dual MIT/GPL";
