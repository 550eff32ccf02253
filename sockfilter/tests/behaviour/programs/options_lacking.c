/* Options that accelerated sockets lack are refused on them; a socket that had one before stays in the kernel, and obeys it. */
// differs: set IP_MINTTL 9 = 0 | set IP_MINTTL 9: EOPNOTSUPP | packets do not come by the kernel
// differs: set IP_TTL 1 = 0 | set IP_TTL 1: EOPNOTSUPP | packets do not leave by the kernel
// differs: set SO_DONTROUTE 1 = 0 | set SO_DONTROUTE 1: EOPNOTSUPP | likewise
// differs: set SO_TIMESTAMPNS 1 = 0 | set SO_TIMESTAMPNS 1: EOPNOTSUPP | no packet has a time
// differs: set TCP_SAVE_SYN 1 = 0 | set TCP_SAVE_SYN 1: EOPNOTSUPP | the SYN is the proxy's
// differs: set TCP_INQ 1 = 0 | set TCP_INQ 1: EOPNOTSUPP | recvmsg returns no control data
#include "behaviour.h"

static void set(int fd, int level, int name, int value, const char *what) {
    int done = setsockopt(fd, level, name, &value, sizeof value);
    if (done) say("set %s %d: %s", what, value, strerrorname_np(errno));
    else say("set %s %d = 0", what, value);
}
#define SET(fd, level, name, value) set(fd, level, name, value, #name)

int main(void) {
    int l = listener();
    struct ends e = ends_at(l);
    int fds[] = {l, e.client, e.server};
    for (int i = 0; i < 3; i++) {
        SET(fds[i], IPPROTO_IP, IP_MINTTL, 9);
        SET(fds[i], IPPROTO_IP, IP_MINTTL, 0);
        SET(fds[i], IPPROTO_IP, IP_MINTTL, 1000);
        SET(fds[i], IPPROTO_IP, IP_TTL, 1);
        SET(fds[i], IPPROTO_IP, IP_TTL, 64);
        SET(fds[i], SOL_SOCKET, SO_DONTROUTE, 1);
        SET(fds[i], SOL_SOCKET, SO_DONTROUTE, 0);
        SET(fds[i], SOL_SOCKET, SO_TIMESTAMPNS, 1);
        SET(fds[i], SOL_SOCKET, SO_TIMESTAMPNS, 0);
        SET(fds[i], IPPROTO_TCP, TCP_SAVE_SYN, 1);
        SET(fds[i], IPPROTO_TCP, TCP_SAVE_SYN, 0);
        SET(fds[i], IPPROTO_TCP, TCP_INQ, 1);
        SET(fds[i], IPPROTO_TCP, TCP_INQ, 0);
        SET(fds[i], SOL_SOCKET, SO_DETACH_FILTER, 0);
        socklen_t len = 0;
        TRY((getsockopt(fds[i], SOL_SOCKET, SO_GET_FILTER, NULL, &len), len));
    }
    /* The peer's packets have a lifetime of 64. */
    int s = bound(), c = MUST(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    SET(s, IPPROTO_IP, IP_MINTTL, 65);
    SET(c, IPPROTO_IP, IP_RECVTOS, 1);
    SET(c, IPPROTO_TCP, TCP_SYNCNT, 1);
    TRY(setsockopt(c, SOL_SOCKET, SO_DONTROUTE, &one, sizeof one));
    TRY(fcntl(c, F_SETFL, O_NONBLOCK));
    TRY(listen(s, 5));
    struct sockaddr_in a = where(s);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    TRY(poll(&(struct pollfd){.fd = s, .events = POLLIN}, 1, 200));
}
