/* Options keep what was set, with the kernel's own limits. */
#include "behaviour.h"

static void set(int fd, int level, int name, int value, const char *what) {
    int got = -77;
    socklen_t len = sizeof got;
    int done = setsockopt(fd, level, name, &value, sizeof value);
    if (done == -1) {
        say("%s: %s", what, strerrorname_np(errno));
        return;
    }
    MUST(getsockopt(fd, level, name, &got, &len));
    say("%s: %d", what, got);
}
#define SET(fd, level, name, value) set(fd, level, name, value, #name " " #value)
int main(void) {
    struct ends e = ends();
    for (int i = 0; i < 2; i++) {
        int fd = i ? e.server : e.client;
        SET(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        SET(fd, IPPROTO_TCP, TCP_NODELAY, 0);
        SET(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        SET(fd, IPPROTO_TCP, TCP_KEEPIDLE, 33);
        SET(fd, IPPROTO_TCP, TCP_KEEPINTVL, 7);
        SET(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
        SET(fd, IPPROTO_TCP, TCP_KEEPIDLE, 0);
        SET(fd, IPPROTO_TCP, TCP_KEEPCNT, 1000);
        SET(fd, SOL_SOCKET, SO_RCVBUF, 50000);
        SET(fd, SOL_SOCKET, SO_SNDBUF, 60000);
        SET(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        SET(fd, SOL_SOCKET, SO_OOBINLINE, 1);
        SET(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3000);
        SET(fd, IPPROTO_TCP, TCP_QUICKACK, 1);
        SET(fd, IPPROTO_TCP, TCP_LINGER2, 5);
        SET(fd, IPPROTO_IP, IP_TOS, 0x10);
        SET(fd, SOL_SOCKET, SO_PRIORITY, 4);
        SET(fd, IPPROTO_TCP, 9999, 1);
        char b = 1;
        TRY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &b, 1));
        TRY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
    }
}
