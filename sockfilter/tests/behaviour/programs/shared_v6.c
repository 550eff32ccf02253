/* IPv6 connections and IPv4 ones of an IPv6 listener, alone and shared: bytes that are not copied, names, pointers that cannot be the program's,
 * and options that a child sets. */
#include "shared.h"

static int listener6(struct sockaddr_in6 *at) {
    int s = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    socklen_t len = sizeof *at;
    *at = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    MUST(bind(s, (struct sockaddr *)at, len));
    MUST(getsockname(s, (struct sockaddr *)at, &len));
    MUST(listen(s, 16));
    return s;
}

static struct ends ends_of(int family) {
    struct sockaddr_in6 six;
    int s = listener6(&six);
    struct sockaddr_in four = here(ntohs(six.sin6_port));
    six.sin6_addr = (struct in6_addr)IN6ADDR_LOOPBACK_INIT;
    struct ends e = {.client = MUST(socket(family, SOCK_STREAM, 0))};
    if (family == AF_INET) MUST(connect(e.client, (struct sockaddr *)&four, sizeof four));
    else MUST(connect(e.client, (struct sockaddr *)&six, sizeof six));
    e.server = MUST(accept(s, NULL, NULL));
    close(s);
    return e;
}

static void named(const char *what, int result, struct sockaddr_storage *a, socklen_t len) {
    char text[100] = "";
    if (a->ss_family == AF_INET) inet_ntop(AF_INET, &((struct sockaddr_in *)a)->sin_addr, text, sizeof text);
    if (a->ss_family == AF_INET6) inet_ntop(AF_INET6, &((struct sockaddr_in6 *)a)->sin6_addr, text, sizeof text);
    say("%s %d, family %d, %u bytes, %s", what, result, a->ss_family, len, text);
}

static void names(int fd) {
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    int result = getsockname(fd, (struct sockaddr *)&a, &len);
    named("getsockname", result, &a, len);
    len = sizeof a;
    result = getpeername(fd, (struct sockaddr *)&a, &len);
    named("getpeername", result, &a, len);
    /* Less room than the name needs. */
    memset(&a, 0, sizeof a);
    len = sizeof(struct sockaddr_in);
    result = getpeername(fd, (struct sockaddr *)&a, &len);
    say("%d, %u bytes, family %d", result, len, a.ss_family);
}

static int option(int fd, int level, int name) {
    int value = -7;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

static void print_options(int fd) {
    say("domain %d, v6only %d, class %d, tos %d, keepalive %d %d %d %d", option(fd, SOL_SOCKET, SO_DOMAIN),
        option(fd, IPPROTO_IPV6, IPV6_V6ONLY), option(fd, IPPROTO_IPV6, IPV6_TCLASS), option(fd, IPPROTO_IP, IP_TOS),
        option(fd, SOL_SOCKET, SO_KEEPALIVE), option(fd, IPPROTO_TCP, TCP_KEEPIDLE), option(fd, IPPROTO_TCP, TCP_KEEPINTVL),
        option(fd, IPPROTO_TCP, TCP_KEEPCNT));
}

static void set(int fd, int level, int name, int value) { TRY(setsockopt(fd, level, name, &value, sizeof value)); }

static void received(struct ends e) {
    char b[8] = "";
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    MUST(send(e.client, "abcdefghijkl", 12, 0));
    arrived(e.server, 12);
    TRY(recv(e.server, NULL, 3, MSG_TRUNC));
    TRY(recv(e.server, NULL, 2, MSG_TRUNC | MSG_PEEK));
    TRY(recvfrom(e.server, NULL, 2, MSG_TRUNC, (struct sockaddr *)&a, &len));
    TRY(len);
    TRY(recv(e.server, (void *)1, 2, 0));
    TRY(recv(e.server, (void *)1, 2, MSG_TRUNC));
    TRY(recv(e.server, NULL, 0, MSG_TRUNC));
    TRY(recv(e.server, b, 8, MSG_DONTWAIT));
    say("%.5s", b);
    TRY(recv(e.server, NULL, 2, MSG_TRUNC | MSG_DONTWAIT));
    TRY(recv(e.server, NULL, 2, 0 | MSG_DONTWAIT));
    len = sizeof a;
    TRY(getpeername(e.server, (void *)1, &len));
    TRY(getsockopt(e.server, IPPROTO_IPV6, IPV6_TCLASS, (void *)1, &len));
    TRY(setsockopt(e.server, IPPROTO_IPV6, IPV6_TCLASS, (void *)1, 4));
}

/* What a child sets, its parent's connection need not report: the process that sets an option sees it. */
static void in_a_child(struct ends e) {
    pid_t child = MUST(fork());
    if (child == 0) {
        set(e.server, IPPROTO_TCP, TCP_KEEPIDLE, 40);
        set(e.server, IPPROTO_TCP, TCP_KEEPINTVL, 7);
        set(e.server, IPPROTO_TCP, TCP_KEEPCNT, 4);
        set(e.server, SOL_SOCKET, SO_KEEPALIVE, 1);
        set(e.server, IPPROTO_IPV6, IPV6_TCLASS, 0x20);
        print_options(e.server);
        names(e.server);
        set(e.server, SOL_SOCKET, SO_KEEPALIVE, 0);
        print_options(e.server);
        received(e);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    TRY(status);
}

int main(void) {
    for (int family = 0; family < 2; family++)
        for (int shared = 0; shared < 2; shared++) {
            struct ends e = ends_of(family ? AF_INET6 : AF_INET);
            say("family %d, shared %d", family, shared);
            if (shared) share();
            names(e.server);
            names(e.client);
            print_options(e.server);
            received(e);
            in_a_child(e);
            close(e.client), close(e.server);
        }
}
