/* Several messages by one call: how many, how long each; the first may wait, a time-out counts between them. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4][4];
    struct iovec v[4];
    struct mmsghdr m[4];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 4; i++) {
        v[i] = (struct iovec){b[i], 4};
        m[i].msg_hdr.msg_iov = &v[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    TRY(recvmmsg(e.server, m, 4, MSG_DONTWAIT, NULL));
    send(e.client, "abcdefghij", 10, 0);
    arrived(e.server, 10);
    TRY(recvmmsg(e.server, m, 4, MSG_WAITFORONE, NULL));
    say("%u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    send(e.client, "abcd", 4, 0);
    arrived(e.server, 4);
    TRY(recvmmsg(e.server, m, 4, MSG_DONTWAIT, NULL));
    send(e.client, "abcdefgh", 8, 0);
    arrived(e.server, 8);
    TRY(recvmmsg(e.server, m, 2, 0, NULL));
    struct timespec zero = {0, 0}, bad = {0, -1};
    send(e.client, "abcdefgh", 8, 0);
    arrived(e.server, 8);
    TRY(recvmmsg(e.server, m, 4, 0, &zero));
    TRY(recvmmsg(e.server, m, 4, 0, &bad));
    TRY(recvmmsg(e.server, m, 0, 0, NULL));
}
