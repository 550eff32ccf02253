/* The way back from a supplied program.
 *
 *   run -> give -(tail call, `supplied`)-> the supplied program -(tail call, `csp_continue`)-> take_back -(tail call, `resume`)-> go_on -> run
 *
 * A program that returns an action instead has decided on the packet: the graph does not go on. The kernel allows 33 tail calls for a packet;
 * a graph's longest path takes 3 * HOPS_MAX.
 *
 * What a supplied program has is what is here for the processor that runs it: no other packet is processed there meanwhile.
 */
#ifndef CSP_RESUME_H
#define CSP_RESUME_H

#include "deliver.h"
#include "maps.h"
#include "plugins.h"

static __always_inline int take_back(struct xdp_md *context, __u32 verdict)
{
	__u32 zero = 0;
	struct passage *passage = bpf_map_lookup_elem(&passages, &zero);

	if (!passage)
		return XDP_ABORTED;
	passage->output = verdict;
	bpf_tail_call(context, &resume, 0);
	return XDP_ABORTED;
}

/* Finds out again what the packet is: a supplied program may have changed it. */
static __always_inline int look_again(struct xdp_md *context, struct packet *packet)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;

	packet->kind = UNCLASSIFIED;
	packet->ip = data + ETHERNET_LEN;
	if ((void *)(data + ETHERNET_LEN) > end)
		return 0;
	if (data[12] == 0x08 && data[13] == 0x00 && (void *)(packet->ip + IPV4_LEN) <= end && packet->ip[0] == 0x45) {
		packet->kind = PLAIN_V4;
		asm volatile("" ::: "memory");
	} else if (data[12] == 0x86 && data[13] == 0xdd && (void *)(packet->ip + IPV6_LEN) <= end) {
		packet->kind = PLAIN_V6;
	}
	return packet->kind != UNCLASSIFIED;
}

static __always_inline int go_on(struct xdp_md *context)
{
	struct packet packet = {};
	__u32 zero = 0;
	struct passage *passage = bpf_map_lookup_elem(&passages, &zero);

	packet.config = bpf_map_lookup_elem(&config, &zero);
	packet.totals = bpf_map_lookup_elem(&totals, &zero);
	struct scratch *scratch = packet.scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!packet.config || !packet.totals || !scratch || !passage)
		return XDP_ABORTED;
	__u32 at = passage->at - 1;
	__u32 output = passage->output;
	scratch->at = at;
	scratch->table = passage->table;
	scratch->port = passage->port;
	packet.len = bpf_xdp_get_buff_len(context);
	passage->at = 0;
	struct state *state = bpf_map_lookup_elem(&states, &scratch->at);
	struct table *table = bpf_map_lookup_elem(&tables, &scratch->table);

	if (table)
		table = bpf_map_lookup_elem(table, &zero);
	/* Without a packet that was given `at` is no instance. */
	if (!state || !table) {
		tick(&packet.totals->broken);
		return XDP_ABORTED;
	}
	add(&state->first, packet.len);
	if (output >= OUTPUTS_MAX) {
		tick(&state->dropped);
		tick(&packet.totals->dropped);
		return XDP_DROP;
	}
	__u32 next = table->instances[at & (INSTANCES_MAX - 1)].outputs[output & (OUTPUTS_MAX - 1)];
	if (next >= INSTANCES_MAX) {
		tick(&packet.totals->passed);
	} else if (look_again(context, &packet)) {
		int action = run(context, table, next, &packet);

		if (action != XDP_PASS)
			return action;
	} else {
		tick(&state->dropped);
		tick(&packet.totals->broken);
		return XDP_ABORTED;
	}
	return scratch->port & HAS_SOCKETS ? deliver(context, scratch->port & PORT_MASK, scratch) : XDP_PASS;
}

#endif
