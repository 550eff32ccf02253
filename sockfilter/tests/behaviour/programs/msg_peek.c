/* MSG_PEEK leaves the bytes where they are, in every form. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[16] = {0};
    TRY(recv(e.server, b, 4, MSG_PEEK | MSG_DONTWAIT));
    TRY(send(e.client, "abcdef", 6, 0));
    arrived(e.server, 6);
    TRY(recv(e.server, b, 4, MSG_PEEK));
    TRY(recv(e.server, b, 16, MSG_PEEK));
    say("%s", b);
    char c[4] = {0}, d[8] = {0};
    struct iovec list[] = {{c, 3}, {d, 8}};
    struct msghdr m = {.msg_iov = list, .msg_iovlen = 2};
    TRY(recvmsg(e.server, &m, MSG_PEEK));
    say("%s %s", c, d);
    TRY(read(e.server, b, 2));
    memset(b, 0, sizeof b);
    TRY(recv(e.server, b, 16, MSG_PEEK));
    say("%s", b);
    TRY(shutdown(e.client, SHUT_WR));
    TRY(recv(e.server, b, 16, 0));
    TRY(recv(e.server, b, 16, MSG_PEEK));
}
