/* Message headers: what comes back in them. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char a[3] = {0}, b[8] = {0}, control[64];
    struct sockaddr_in name;
    struct iovec out[] = {{"ab", 2}, {"cdef", 4}}, in[] = {{a, 2}, {b, 8}};
    struct msghdr m = {.msg_iov = out, .msg_iovlen = 2};
    TRY(sendmsg(e.client, &m, 0));
    arrived(e.server, 6);
    m = (struct msghdr){.msg_name = &name, .msg_namelen = sizeof name, .msg_iov = in, .msg_iovlen = 2,
        .msg_control = control, .msg_controllen = sizeof control, .msg_flags = 77};
    TRY(recvmsg(e.server, &m, 0));
    say("%s %s, name %u, control %zu, flags %d", a, b, m.msg_namelen, m.msg_controllen, m.msg_flags);
    m.msg_iovlen = 1025;
    TRY(recvmsg(e.server, &m, MSG_DONTWAIT));
    TRY(sendmsg(e.client, &m, MSG_DONTWAIT));
    m.msg_iovlen = 0;
    m.msg_controllen = 0;
    TRY(sendmsg(e.client, &m, 0));
    TRY(recvmsg(e.server, &m, MSG_DONTWAIT));
    /* A name is no matter on a connection. */
    struct sockaddr_in other = here(1);
    m = (struct msghdr){.msg_name = &other, .msg_namelen = sizeof other, .msg_iov = out, .msg_iovlen = 1};
    TRY(sendmsg(e.client, &m, 0));
    TRY(recv(e.server, b, 8, 0));
}
