/* Either set is closed, or the inner one taken out, while one is in the other; duplicates keep it. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    int outer = MUST(epoll_create1(0)), inner = MUST(epoll_create1(0));
    int before = MUST(dup(inner)), above = MUST(dup(outer));
    char b[8];
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, before, &v));
    v.data.u32 = 2;
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    int after = MUST(dup(inner));
    send(e.client, "x", 1, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    TRY(epoll_wait(above, got, 4, -1));
    TRY(epoll_wait(before, got, 4, 0));
    TRY(epoll_wait(after, got, 4, 0));
    TRY(epoll_ctl(above, EPOLL_CTL_DEL, inner, NULL));
    TRY(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
    TRY(epoll_wait(above, got, 4, -1));
    say("%u", got[0].data.u32);
    TRY(close(inner));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_wait(after, got, 4, 0));
    TRY(read(e.server, b, 8));
    TRY(epoll_wait(outer, got, 4, 0));
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(close(outer));
    TRY(epoll_wait(above, got, 4, 0));
    TRY(epoll_ctl(after, EPOLL_CTL_DEL, e.server, NULL));
    TRY(epoll_wait(above, got, 4, 0));
    TRY(epoll_ctl(after, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(above, got, 4, 0));
    TRY(close(after));
    TRY(epoll_wait(above, got, 4, 0));
    TRY(close(before));
    TRY(epoll_wait(above, got, 4, 0));
    TRY(close(above));
    /* The member closes, and the inner set while it is ready. */
    outer = MUST(epoll_create1(0)), inner = MUST(epoll_create1(0));
    struct ends f = ends();
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, f.server, &v));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(close(e.server));
    TRY(epoll_wait(outer, got, 4, 0));
    send(f.client, "x", 1, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    int other = MUST(epoll_create1(0));
    TRY(dup2(other, inner) == inner);
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, f.server, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(close(outer));
    TRY(epoll_wait(other, got, 4, 0));
}
