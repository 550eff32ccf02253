/* Bytes sent with MSG_MORE wait for more, and come in order. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[16] = {0};
    TRY(send(e.client, "head", 4, MSG_MORE));
    TRY(send(e.client, "-", 1, MSG_MORE));
    TRY(send(e.client, "body", 4, 0));
    arrived(e.server, 9);
    TRY(recv(e.server, b, 16, 0));
    say("%s", b);
    /* Without more they come by themselves, if later. */
    TRY(send(e.client, "alone", 5, MSG_MORE));
    TRY(recv(e.server, b, 5, MSG_WAITALL));
    struct iovec v = {"vec", 3};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    TRY(sendmsg(e.client, &m, MSG_MORE));
    TRY(shutdown(e.client, SHUT_WR));
    TRY(recv(e.server, b, 16, MSG_WAITALL));
}
