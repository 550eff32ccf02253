/* Connections and kernel descriptors beside an inner set, and in it. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends(), f = ends();
    int p[2], r[2], inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    MUST(pipe(p));
    MUST(pipe(r));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[8];
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, e.server, &v));
    v.data.u32 = 2;
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    v.data.u32 = 4;
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, p[0], &v));
    v.data.u32 = 8;
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, f.server, &v));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, r[0], &v));
    for (int ready = 0; ready < 16; ready++) {
        char b;
        if (ready & 1) send(e.client, "x", 1, 0), arrived(e.server, 1);
        if (ready & 2) send(f.client, "x", 1, 0), arrived(f.server, 1);
        if (ready & 4) write(p[1], "x", 1);
        if (ready & 8) write(r[1], "x", 1);
        /* All come, though not necessarily by one call. */
        int found = 0;
        for (int i = 0; i < 10; i++)
            for (int n = epoll_wait(outer, got, 8, 0); n-- > 0;) found |= got[n].data.u32;
        int one = 0;
        for (int i = 0; i < 20; i++)
            if (epoll_wait(outer, got, 1, 0) == 1) one |= got[0].data.u32;
        say("%d %d %d %d", ready, found, one, found && epoll_wait(outer, got, 8, -1) > 0);
        TRY(epoll_wait(inner, got, 1, 0));
        if (ready & 1) read(e.server, &b, 1);
        if (ready & 2) read(f.server, &b, 1);
        if (ready & 4) read(p[0], &b, 1);
        if (ready & 8) read(r[0], &b, 1);
        TRY(epoll_wait(outer, got, 8, 0));
    }
}
