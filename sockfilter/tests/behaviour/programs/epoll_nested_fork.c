/* After a fork the parent's sets go on; the child's own are its own. */
#include "behaviour.h"

static int nested(struct ends e) {
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    MUST(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    MUST(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    return outer;
}
int main(void) {
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 7}, got[4];
    int p[2];
    struct ends e = ends();
    int outer = nested(e), plain = MUST(epoll_create1(0));
    MUST(pipe(p));
    MUST(dup(plain));
    char b;
    fflush(stdout);
    pid_t child = MUST(fork());
    if (child == 0) {
        struct ends f = ends();
        int own = nested(f);
        TRY(epoll_wait(own, got, 4, 0));
        send(f.client, "x", 1, 0);
        TRY(epoll_wait(own, got, 4, -1));
        read(f.server, &b, 1);
        TRY(epoll_wait(own, got, 4, 0));
        /* A set of before, with a pipe, in one of its own. */
        TRY(epoll_ctl(plain, EPOLL_CTL_ADD, p[0], &v));
        TRY(epoll_ctl(own, EPOLL_CTL_ADD, plain, &v));
        TRY(epoll_wait(own, got, 4, 0));
        write(p[1], "x", 1);
        TRY(epoll_wait(own, got, 4, -1));
        say("%u", got[0].data.u32);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    TRY(epoll_wait(plain, got, 4, 0));
    say("%u", got[0].data.u32);
    TRY(epoll_wait(outer, got, 4, 0));
    send(e.client, "x", 1, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    read(e.server, &b, 1);
    TRY(epoll_wait(outer, got, 4, 0));
}
