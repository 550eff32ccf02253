/* The way back to the kernel: what the node writes to a TAP device arrives at a LAN port, behind the port's XDP program.
 *
 *   write -> TAP device -> this program -> the port's interface -> the host's stack
 *
 * The kernel's stack sees the port as the interface that has received the frame, so that addresses of the link, firewall rules, bridges and
 * reverse-path filters hold as for a frame that never left it. A generic XDP program does not see it again: the kernel passes over frames that
 * were redirected.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Number of the port's interface; set before the program is loaded. */
volatile const __u32 port = 0;

SEC("classifier")
int csp_back(struct __sk_buff *frame)
{
	return bpf_redirect(port, BPF_F_INGRESS);
}

char back_license[] SEC("license") = "Dual MIT/GPL";
