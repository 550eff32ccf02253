/* epoll_wait's time-outs. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    double t = seconds();
    TRY(epoll_wait(q, got, 4, 0));
    say("%s", took(t, 0));
    TRY(epoll_wait(q, got, 4, 55));
    say("%s", took(t, 0.055));
}
