/* EFAULT for addresses that cannot be anyone's. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    send(e.client, "abc", 3, 0);
    arrived(e.server, 3);
    TRY(recv(e.server, NULL, 3, 0));
    TRY(read(e.server, (void *)8, 3));
    TRY(write(e.client, NULL, 3));
    TRY(send(e.client, (void *)-8L, 3, 0));
    struct iovec v = {NULL, 3};
    TRY(readv(e.server, &v, 1));
    TRY(readv(e.server, NULL, 1));
    TRY(writev(e.client, NULL, 1));
    TRY(recvmsg(e.server, NULL, 0));
    TRY(sendmsg(e.client, NULL, 0));
    TRY(recv(e.server, b, 4, 0));
    /* Of addresses in the kernel's half a call complains before it waits, of others when there are bytes. */
    void *high = (void *)-8L;
    struct iovec two[2] = {{b, 4}, {high, 3}};
    struct msghdr m = {.msg_iov = two, .msg_iovlen = 2};
    TRY(recv(e.server, high, 3, 0));
    TRY(recv(e.server, high, 3, MSG_PEEK));
    TRY(recv(e.server, high, 3, MSG_TRUNC));
    TRY(recv(e.server, high, 3, MSG_OOB));
    TRY(recv(e.server, high, 3, MSG_ERRQUEUE));
    TRY(recv(e.server, high, 0, 0));
    TRY(read(e.server, high, 3));
    TRY(readv(e.server, two, 2));
    TRY(recvmsg(e.server, &m, 0));
    TRY(recv(e.server, (void *)8, 3, MSG_DONTWAIT));
}
