/* Descriptors are the lowest that are free. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    struct ends e = ends_at(s), f = ends_at(s);
    say("%d %d %d %d %d", s, e.client, e.server, f.client, f.server);
    close(e.client);
    close(e.server);
    int p[2];
    MUST(pipe(p));
    say("%d %d", p[0], p[1]);
    int q = epoll_create1(0);
    struct epoll_event v = {.events = EPOLLIN};
    epoll_ctl(q, EPOLL_CTL_ADD, f.server, &v);
    say("%d %d", q, dup(0));
}
