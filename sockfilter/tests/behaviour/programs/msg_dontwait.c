/* MSG_DONTWAIT makes one call non-blocking and leaves the socket as it is. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[8];
    TRY(recv(e.server, b, 8, MSG_DONTWAIT));
    say("flag %d", (fcntl(e.server, F_GETFL) & O_NONBLOCK) != 0);
    say("filled %d", fill(e.client) > 100000);
    /* What is on its way may make room. */
    while (send(e.client, b, 8, MSG_DONTWAIT) > 0) {}
    say("%s", strerrorname_np(errno));
    struct iovec v = {b, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    while (sendmsg(e.client, &m, MSG_DONTWAIT) > 0) {}
    say("%s", strerrorname_np(errno));
    TRY(recvmsg(e.client, &m, MSG_DONTWAIT));
}
