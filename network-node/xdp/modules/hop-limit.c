/* Drops packets that have crossed too many routers: whose TTL (IPv4) or hop limit (IPv6) is below the parameter, 1 to 255. With 255 only
 * hosts of the same link pass (RFC 5082). Without a parameter all pass. As libcsp/sandbox/modules/hop-limit.c, for the driver.
 */
#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "csp_xdp.h"

CSP_XDP_NUMBERS(1, 1, 255);
CSP_PARAMETERS

SEC("xdp")
int hop_limit(struct xdp_md *context)
{
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = (void *)(long)context->data;
	const struct csp_parameters *parameters = csp_read_parameters();
	__u64 hops;

	/* Without CAP_PERFMON the verifier allows no offset that a branch has chosen: each branch ends by itself. */
	if (!parameters || (void *)(ethernet + 1) > end)
		return csp_next(context, 0);
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end)
			return csp_next(context, 0);
		hops = ip->ttl;
		asm volatile("" : "+r"(hops));
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end)
			return csp_next(context, 0);
		hops = ip->hop_limit;
		asm volatile("" : "+r"(hops));
	} else {
		return csp_next(context, 0);
	}
	if (hops < parameters->numbers[0])
		return csp_drop(context);
	return csp_next(context, 0);
}

char module_license[] SEC("license") = "Dual MIT/GPL";
