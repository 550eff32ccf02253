/* Packet plug-ins at the driver. The program finds the rule that decides on a packet, by priority, as libcsp/classify does, and runs
 * the graph of instances that the rule leads to.
 *
 *   frame -> parse -> classify -+-> rule of level 1 -> instances -> XDP_PASS, XDP_DROP, XDP_REDIRECT
 *                    |          +-> rule of level 2, no rule -> XDP_PASS
 *                    +-> not plain: XDP_PASS, level 2 classifies it
 *
 * What passes goes to the kernel, or, at a port of AF_XDP sockets and if it is for an address of the node, to the socket of its queue
 * (deliver.h).
 *
 * A packet is plain if its frame has no VLAN tag, it is no fragment, and has neither IPv4 options nor IPv6 extension headers. Level 2
 * knows which packets are plain (csp_classify::multifield::Parsed::is_plain), so that it does not process them again.
 *
 * A supplied program (resume.h) is reached by a tail call, and gives the packet back by another one.
 *
 * A table is immutable: it is replaced as a whole, in the array of maps `tables`. Nothing of a packet is trusted; every loop has a
 * constant bound, which csp-xdp checks before it installs a table.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "classify.h"
#include "deliver.h"
#include "maps.h"
#include "parse.h"
#include "plugins.h"
#include "resume.h"

/* The verdict of the plug-ins: an action, XDP_PASS also for frames that no rule of level 1 decides on. */
static __always_inline int process(struct xdp_md *context, struct table *table, struct packet *packet, __u32 port)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct key key;
	struct search search = {};

	search.table = table;
	search.key = &key;
	search.hit.rank = NONE;
	search.hit.start = OUT;
	search.next = NONE;
	if ((void *)(data + ETHERNET_LEN) > end)
		return XDP_PASS;
	tick(&packet->totals->seen);
	packet->ip = data + ETHERNET_LEN;
	/* Pointers are compared with constant offsets only: without CAP_PERFMON the verifier allows no others. */
	packet->len = bpf_xdp_get_buff_len(context);
	if (data[12] == 0x08 && data[13] == 0x00) {
		packet->kind = parse_v4(packet->ip, end, packet->len, port, &key);
		if (packet->kind == PLAIN_V4)
			find(&search, 0);
	} else if (data[12] == 0x86 && data[13] == 0xdd) {
		packet->kind = parse_v6(packet->ip, end, packet->len, port, &key);
		if (packet->kind == PLAIN_V6)
			find(&search, 1);
	}
	if (packet->kind == UNCLASSIFIED) {
		tick(&packet->totals->unclassified);
		return XDP_PASS;
	}
	if (search.hit.rank == NONE) {
		tick(&packet->totals->unmatched);
		return XDP_PASS;
	}
	if (search.hit.start >= INSTANCES_MAX) {
		tick(&packet->totals->level2);
		return XDP_PASS;
	}
	/* The shortest plain packet of its family is there; the verifier is shown it again. */
	if (packet->kind == PLAIN_V4) {
		if ((void *)(packet->ip + IPV4_LEN) > end)
			return XDP_PASS;
		asm volatile("" ::: "memory");
	} else if ((void *)(packet->ip + IPV6_LEN) > end) {
		return XDP_PASS;
	}
	struct count *count = bpf_map_lookup_elem(&rule_counts, &search.hit.slot);
	if (count)
		add(count, packet->len);
	return run(context, table, search.hit.start, packet);
}

static __always_inline int level1(struct xdp_md *context)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct packet packet = {};
	__u32 zero = 0;

	packet.config = bpf_map_lookup_elem(&config, &zero);
	packet.totals = bpf_map_lookup_elem(&totals, &zero);
	if (!packet.config || !packet.totals || (void *)(data + ETHERNET_LEN) > end)
		return XDP_PASS;
	__u32 number = port_of(packet.config, context->ingress_ifindex, data);
	if (number == NOT_FOR_US)
		return XDP_PASS;
	struct table *table = 0;

	packet.port = number;
	packet.table = packet.config->table;
	if (!(number & NO_RULES))
		table = bpf_map_lookup_elem(&tables, &packet.table);
	/* Before the first rules there is no table. */
	if (table)
		table = bpf_map_lookup_elem(table, &zero);
	if (table) {
		int action = process(context, table, &packet, number & PORT_MASK);

		if (action != XDP_PASS)
			return action;
	}
	return number & HAS_SOCKETS ? deliver(context, number & PORT_MASK) : XDP_PASS;
}

SEC("xdp")
int csp_level1(struct xdp_md *context)
{
	return level1(context);
}

SEC("xdp")
int csp_resume(struct xdp_md *context)
{
	return go_on(context);
}

#define GIVES_BACK(VERDICT)                                    \
	SEC("xdp")                                             \
	int csp_verdict_##VERDICT(struct xdp_md *context)      \
	{                                                      \
		return take_back(context, VERDICT);            \
	}

GIVES_BACK(0)
GIVES_BACK(1)
GIVES_BACK(2)
GIVES_BACK(3)
GIVES_BACK(4)
GIVES_BACK(5)
GIVES_BACK(6)
GIVES_BACK(7)
GIVES_BACK(8)

char level1_license[] SEC("license") = "Dual MIT/GPL";
