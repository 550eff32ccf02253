/* Connections that are passed to a program through a Unix socket. */
#include "behaviour.h"

/* Passes or receives a descriptor. */
static int descriptor(int at, int passed) {
    char byte = 'p', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (passed < 0) {
        MUST(recvmsg(at, &message, 0));
        return *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    *(int *)CMSG_DATA(header) = passed;
    return MUST(sendmsg(at, &message, 0));
}

/* Serves the connection that is passed. */
static int serve(int at) {
    int c = descriptor(at, -1);
    char byte;
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    TRY(recv(c, &byte, 1, 0));
    TRY(getpeername(c, (struct sockaddr *)&peer, &len));
    TRY(peer.sin_family);
    TRY(send(c, &byte, 1, 0));
    return 0;
}
