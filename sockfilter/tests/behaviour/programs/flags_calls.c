/* Calls that are neither sends nor receives, on a connection of one process and on a shared one. */
#include "shared.h"

static void names(int fd) {
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    TRY(getsockname(fd, (struct sockaddr *)&a, &len));
    say("%u %d", len, a.sin_family == AF_INET && ntohl(a.sin_addr.s_addr) == INADDR_LOOPBACK);
    len = 4;
    TRY(getpeername(fd, (struct sockaddr *)&a, &len));
    say("%u", len);
}

static void wrong_kind(int fd) {
    struct sockaddr_in a = here(0);
    TRY(accept(fd, NULL, NULL));
    TRY(listen(fd, 5));
    TRY(bind(fd, (struct sockaddr *)&a, sizeof a));
    TRY(connect(fd, (struct sockaddr *)&a, sizeof a));
    TRY(shutdown(fd, 9));
    TRY(lseek(fd, 0, SEEK_CUR));
    char b[4];
    TRY(pread(fd, b, 4, 0));
    TRY(ftruncate(fd, 0));
}

static void queues(struct ends e) {
    int n = -1, p[2];
    MUST(send(e.client, "abcdef", 6, 0));
    arrived(e.server, 6);
    TRY(ioctl(e.server, FIONREAD, &n));
    say("%d", n);
    TRY(ioctl(e.server, SIOCATMARK, &n));
    say("%d", n);
    while (MUST(ioctl(e.client, SIOCOUTQ, &n)) == 0 && n > 0) sched_yield();
    say("%d", n);
    MUST(pipe(p));
    char b[8] = "";
    TRY(splice(e.server, NULL, p[1], NULL, 3, 0));
    TRY(read(p[0], b, 8));
    say("%s", b);
    struct iovec parts[2] = {{b, 1}, {b + 1, 7}};
    TRY(preadv2(e.server, parts, 2, -1, 0x8 /* RWF_NOWAIT */));
    say("%s", b);
    TRY(preadv2(e.server, parts, 2, -1, 0x8));
    TRY(readv(e.server, parts, 0));
}

static void ready(struct ends e) {
    struct pollfd p = {.fd = e.server, .events = POLLIN | POLLOUT | POLLPRI | POLLRDHUP};
    TRY(poll(&p, 1, 0));
    say("%x", p.revents);
    fd_set r, w, x;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_ZERO(&x);
    FD_SET(e.server, &r);
    FD_SET(e.server, &w);
    FD_SET(e.server, &x);
    struct timeval none = {0, 0};
    TRY(select(e.server + 1, &r, &w, &x, &none));
    say("%d%d%d", FD_ISSET(e.server, &r) != 0, FD_ISSET(e.server, &w) != 0, FD_ISSET(e.server, &x) != 0);
    MUST(shutdown(e.client, SHUT_WR));
    ended(e.server);
    TRY(poll(&p, 1, 0));
    say("%x", p.revents);
}

static void each(struct ends e, const char *who) {
    say("%s", who);
    names(e.client), names(e.server);
    wrong_kind(e.server);
    queues(e);
    say("%d", (int)(MUST(fcntl(e.server, F_GETFL)) & (O_ACCMODE | O_NONBLOCK)));
    ready(e);
}

int main(void) { own_and_shared(each); }
