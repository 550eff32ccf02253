/* Calls that send are cancellation points while they wait; the connection is of use afterwards. */
#include "behaviour.h"

static struct ends e;
static int pipes[2], empty[2];
static char much[1 << 20];
static void *waits(void *way) {
    struct iovec part = {much, sizeof much};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr messages = {.msg_hdr = message};
    struct pollfd p = {e.client, POLLOUT};
    fd_set w;
    FD_ZERO(&w);
    FD_SET(e.client, &w);
    this_thread();
    switch ((long)way) {
    case 0: write(e.client, much, sizeof much); break;
    case 1: send(e.client, much, sizeof much, 0); break;
    case 2: writev(e.client, &part, 1); break;
    case 3: sendmsg(e.client, &message, 0); break;
    case 4: sendmmsg(e.client, &messages, 1, 0); break;
    case 5: sendto(e.client, much, sizeof much, 0, NULL, 0); break;
    case 6: poll(&p, 1, -1); break;
    case 7: pselect(e.client + 1, NULL, &w, NULL, NULL, NULL); break;
    case 8: splice(pipes[0], NULL, e.client, NULL, 4096, 0); break;
    case 9: splice(empty[0], NULL, e.client, NULL, 4096, 0); break;
    }
    return NULL;
}
int main(void) {
    e = ends();
    long sent = stuff(e.client);
    MUST(pipe(pipes));
    MUST(pipe(empty));
    MUST(write(pipes[1], much, 4096));
    cancel_each(waits, 10);
    drain(e.server, sent);
    TRY(send(e.client, "x", 1, 0));
    char b;
    TRY(recv(e.server, &b, 1, 0));
}
