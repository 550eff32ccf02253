/* Zero-copy sends: SO_ZEROCOPY is refused on accelerated sockets, so that no program waits for a completion that never comes; a
 * socket that had it before stays in the kernel. */
// differs: setsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) = 0 | setsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on): EOPNOTSUPP | everything is copied
// differs: (getsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &value, &len), value) = 1 | (getsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &value, &len), value) = 0 | it was refused
#include "behaviour.h"
#include <linux/errqueue.h>

static int on = 1;

/* Waits for the completions of all sends up to one; the number of notifications does not matter. */
static void completed(int fd, unsigned last) {
    for (unsigned next = 0; next <= last;) {
        char control[200];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        if (!(await(fd, 0) & POLLERR)) continue;
        if (recvmsg(fd, &m, MSG_ERRQUEUE) == -1) continue;
        struct sock_extended_err *e = (void *)CMSG_DATA(CMSG_FIRSTHDR(&m));
        if (e->ee_origin != SO_EE_ORIGIN_ZEROCOPY) say("of another origin");
        next = e->ee_data + 1;
    }
    say("complete");
}

int main(void) {
    struct ends e = ends();
    char buffer[100] = "";
    int value = 0;
    socklen_t len = sizeof value;
    /* Without the option the flag counts for nothing. */
    TRY(send(e.client, "flag", 4, MSG_ZEROCOPY));
    TRY(recv(e.server, buffer, 4, MSG_WAITALL));
    TRY(recvmsg(e.client, &(struct msghdr){0}, MSG_ERRQUEUE | MSG_DONTWAIT));
    TRY(setsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    TRY((getsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &value, &len), value));

    int s = bound(), c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(setsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    TRY(setsockopt(c, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    TRY(listen(s, 5));
    struct sockaddr_in a = where(s);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    int server = MUST(accept(s, NULL, NULL));
    TRY(send(c, "one", 3, MSG_ZEROCOPY));
    TRY(send(c, "two", 3, MSG_ZEROCOPY));
    completed(c, 1);
    TRY(recv(server, buffer, 6, MSG_WAITALL));
    say("%.6s", buffer);
}
