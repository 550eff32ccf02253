/* epoll_pwait2's time-outs are in nanoseconds. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    struct timespec zero = {0, 0}, some = {0, 40200000}, bad = {0, -1};
    double t = seconds();
    TRY(epoll_pwait2(q, got, 4, &zero, NULL));
    TRY(epoll_pwait2(q, got, 4, &some, NULL));
    say("%s", took(t, 0.0402));
    TRY(epoll_pwait2(q, got, 4, &bad, NULL));
    send(e.client, "x", 1, 0);
    TRY(epoll_pwait2(q, got, 4, NULL, NULL));
    say("%x", got[0].events);
    t = seconds();
    struct timespec tiny = {0, 300000};
    char b;
    read(e.server, &b, 1);
    for (int i = 0; i < 10; i++) epoll_pwait2(q, got, 4, &tiny, NULL);
    say("%s", took(t, 0.003));
}
