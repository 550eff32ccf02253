/* Several messages in one call; a failure after the first message is not reported. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[32] = {0};
    struct iovec v[] = {{"one", 3}, {"two", 3}, {"three", 5}};
    struct mmsghdr m[3];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 3; i++) {
        m[i].msg_hdr.msg_iov = &v[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    TRY(sendmmsg(e.client, m, 3, 0));
    say("%u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    arrived(e.server, 11);
    TRY(recv(e.server, b, 32, 0));
    say("%s", b);
    TRY(sendmmsg(e.client, m, 0, 0));
    m[1].msg_hdr.msg_iovlen = 2000;
    TRY(sendmmsg(e.client, m, 3, 0));
    TRY(recv(e.server, b, 32, 0));
    shutdown(e.client, SHUT_WR);
    TRY(sendmmsg(e.client, m, 3, MSG_NOSIGNAL));
}
