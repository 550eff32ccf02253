/* FIONREAD, SIOCINQ, SIOCOUTQ, SIOCATMARK. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int n = -1;
    TRY(ioctl(e.server, FIONREAD, &n));
    say("%d", n);
    send(e.client, "abcdef", 6, 0);
    arrived(e.server, 6);
    TRY(ioctl(e.server, SIOCINQ, &n));
    say("%d", n);
    char b[4];
    recv(e.server, b, 4, MSG_PEEK);
    recv(e.server, b, 4, 0);
    TRY(ioctl(e.server, FIONREAD, &n));
    say("%d", n);
    do { MUST(ioctl(e.client, SIOCOUTQ, &n)); } while (n > 0 && sched_yield() == 0);
    say("%d", n);
    TRY(ioctl(e.server, SIOCATMARK, &n));
    say("%d", n);
    TRY(ioctl(e.server, 0x1234, &n));
    int s = listener();
    TRY(ioctl(s, FIONREAD, &n));
}
