/* What is set on a listener holds for what it accepts. */
#include "behaviour.h"

static int get(int fd, int level, int name) {
    int got = -77;
    socklen_t len = sizeof got;
    MUST(getsockopt(fd, level, name, &got, &len));
    return got;
}
int main(void) {
    int s = bound(), one = 1, nine = 9, buffer = 40000;
    struct linger l = {1, 3};
    struct timeval t = {2, 500000};
    MUST(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    MUST(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    MUST(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer));
    MUST(listen(s, 4));
    MUST(setsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &nine, sizeof nine));
    MUST(setsockopt(s, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    MUST(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    struct ends e = ends_at(s);
    int names[][2] = {{IPPROTO_TCP, TCP_NODELAY}, {SOL_SOCKET, SO_KEEPALIVE}, {IPPROTO_TCP, TCP_KEEPCNT},
        {SOL_SOCKET, SO_RCVBUF}};
    for (int i = 0; i < 4; i++) say("%d", get(e.server, names[i][0], names[i][1]));
    socklen_t len = sizeof l;
    l = (struct linger){0};
    MUST(getsockopt(e.server, SOL_SOCKET, SO_LINGER, &l, &len));
    say("linger %d %d", l.l_onoff, l.l_linger);
    len = sizeof t;
    t = (struct timeval){0};
    MUST(getsockopt(e.server, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
    say("timeout %ld.%06ld", (long)t.tv_sec, (long)t.tv_usec);
    say("client %d", get(e.client, IPPROTO_TCP, TCP_NODELAY));
}
