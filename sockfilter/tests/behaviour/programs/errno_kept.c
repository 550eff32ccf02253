/* What succeeds leaves errno alone. */
#include "behaviour.h"

int main(void) {
    errno = 77;
    struct ends e = ends();
    char b[8];
    int n;
    socklen_t len = sizeof n;
    struct pollfd p = {e.server, POLLIN};
    struct timeval zero = {0, 0};
    errno = 77;
    send(e.client, "abc", 3, 0);
    say("send %d", errno);
    poll(&p, 1, -1);
    say("poll %d", errno);
    read(e.server, b, 8);
    say("read %d", errno);
    poll(&p, 1, 5);
    say("poll %d", errno);
    getsockopt(e.server, SOL_SOCKET, SO_ERROR, &n, &len);
    say("getsockopt %d", errno);
    int q = epoll_create1(0);
    struct epoll_event v = {.events = EPOLLIN};
    epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v);
    epoll_wait(q, &v, 1, 5);
    say("epoll %d", errno);
    close(dup(e.server));
    say("dup %d", errno);
    close(e.client);
    read(e.server, b, 8);
    say("end %d", errno);
}
