/* Packet plug-ins at the driver. The program finds the rule that decides on a packet, by priority, as libcsp/classify does, and runs
 * the graph of instances that the rule leads to.
 *
 *   frame -> parse -> classify -+-> rule of level 1 -> instances -> XDP_PASS, XDP_DROP, XDP_REDIRECT
 *                    |          +-> no rule -> XDP_PASS
 *                    |          +-> rule of level 2 -> TO_WORKER
 *                    +-> not plain: TO_WORKER, level 2 classifies it
 *
 * What passes goes to the kernel, or, at a port of AF_XDP sockets, to the socket of its queue: if it is for an address of the node, or if it is
 * for the workers and these have a way back to the kernel (deliver.h).
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

/* The verdict of the plug-ins: an action, XDP_PASS also for frames that no rule decides on, or TO_WORKER. */
static __always_inline int process(struct xdp_md *context, struct table *table, struct packet *packet, __u32 port)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct lookup *lookup = &packet->scratch->lookup;

	if ((void *)(data + ETHERNET_LEN) > end)
		return XDP_PASS;
	tick(&packet->totals->seen);
	packet->ip = data + ETHERNET_LEN;
	/* Pointers are compared with constant offsets only: without CAP_PERFMON the verifier allows no others. */
	packet->len = bpf_xdp_get_buff_len(context);
	if (data[12] == 0x08 && data[13] == 0x00) {
		packet->kind = parse_v4(packet->ip, end, packet->len, port, &lookup->key);
		if (packet->kind == PLAIN_V4)
			find(table, lookup, 0);
	} else if (data[12] == 0x86 && data[13] == 0xdd) {
		packet->kind = parse_v6(packet->ip, end, packet->len, port, &lookup->key);
		if (packet->kind == PLAIN_V6)
			find(table, lookup, 1);
	}
	if (packet->kind == UNCLASSIFIED) {
		tick(&packet->totals->unclassified);
		return TO_WORKER;
	}
	if (lookup->hit.rank == NONE) {
		tick(&packet->totals->unmatched);
		return XDP_PASS;
	}
	if (lookup->hit.start >= INSTANCES_MAX) {
		tick(&packet->totals->level2);
		return TO_WORKER;
	}
	/* The shortest plain packet of its family is there; the verifier is shown it again. */
	if (packet->kind == PLAIN_V4) {
		if ((void *)(packet->ip + IPV4_LEN) > end)
			return XDP_PASS;
		asm volatile("" ::: "memory");
	} else if ((void *)(packet->ip + IPV6_LEN) > end) {
		return XDP_PASS;
	}
	struct count *count = bpf_map_lookup_elem(&rule_counts, &lookup->hit.slot);
	if (count)
		add(count, packet->len);
	return run(context, table, lookup->hit.start, packet);
}

static __always_inline int level1(struct xdp_md *context)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct packet packet = {};
	__u32 zero = 0;

	packet.config = bpf_map_lookup_elem(&config, &zero);
	packet.totals = bpf_map_lookup_elem(&totals, &zero);
	packet.scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!packet.config || !packet.totals || !packet.scratch || (void *)(data + ETHERNET_LEN) > end)
		return XDP_PASS;
	__u32 number = port_of(packet.config, context->ingress_ifindex, data);
	if (number == NOT_FOR_US)
		return XDP_PASS;
	if (number & NO_RULES) {
		/* No plug-in is here: only what may be the kernel's or the workers' needs a rule. */
		if (!(number & HAS_SOCKETS))
			return XDP_PASS;
		if (is_owned(data, end, &packet.scratch->owned))
			return to_socket(context, number & PORT_MASK);
		if (!(number & TAKES_MATCHED))
			return XDP_PASS;
		if (number & TAKES_ALL)
			return is_packet(data, end) ? to_socket(context, number & PORT_MASK) : XDP_PASS;
	}
	number = forget(number, packet.config);
	packet.scratch->port = number;
	packet.scratch->table = packet.config->table;
	struct table *table = bpf_map_lookup_elem(&tables, &packet.scratch->table);
	int action = XDP_PASS;

	/* Before the first rules there is no table. */
	if (table)
		table = bpf_map_lookup_elem(table, &zero);
	if (table) {
		action = process(context, table, &packet, number & PORT_MASK);
		if (action != XDP_PASS && action != TO_WORKER)
			return action;
	}
	if (!(number & HAS_SOCKETS))
		return XDP_PASS;
	if (action == TO_WORKER && number & TAKES_MATCHED) {
		data = (void *)(long)context->data;
		end = (void *)(long)context->data_end;
		if (is_packet(data, end))
			return to_socket(context, number & PORT_MASK);
	}
	return deliver(context, number & PORT_MASK, packet.scratch);
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
