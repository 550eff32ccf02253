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
}
