/* IPv6, and IPv4 clients of an IPv6 listener. */
#include "behaviour.h"

static void show(int fd, int (*name)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in6 a = {0};
    socklen_t len = sizeof a;
    char text[64];
    if (name(fd, (struct sockaddr *)&a, &len) == -1) {
        say("%s", strerrorname_np(errno));
        return;
    }
    say("%s, %u bytes", inet_ntop(a.sin6_family, &a.sin6_addr, text, sizeof text), len);
}
int main(void) {
    int s = MUST(socket(AF_INET6, SOCK_STREAM, 0)), off = 0;
    MUST(setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    socklen_t len = sizeof a;
    MUST(bind(s, (struct sockaddr *)&a, sizeof a));
    MUST(listen(s, 4));
    MUST(getsockname(s, (struct sockaddr *)&a, &len));
    struct sockaddr_in b = here(ntohs(a.sin6_port));
    int c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(c, (struct sockaddr *)&b, sizeof b));
    int t = MUST(accept(s, NULL, NULL));
    show(t, (void *)getsockname);
    show(t, (void *)getpeername);
    a.sin6_addr = in6addr_loopback;
    int d = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    TRY(connect(d, (struct sockaddr *)&a, sizeof a));
    t = MUST(accept(s, NULL, NULL));
    show(t, (void *)getsockname);
    show(t, (void *)getpeername);
    show(d, (void *)getpeername);
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.sin6_addr);
    d = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    TRY(connect(d, (struct sockaddr *)&a, sizeof a));
    show(d, (void *)getsockname);
    show(d, (void *)getpeername);
}
