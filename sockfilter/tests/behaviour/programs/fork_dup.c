/* One thread duplicates and closes a connection while another forks: what a child has open is the connection. */
#include "beside_fork.h"

enum { ROUNDS = 150, NUMBER = 60, MORE = 70 };

static int is_connected(int fd) {
    struct sockaddr_in a = {0};
    socklen_t len = sizeof a;
    return getpeername(fd, (struct sockaddr *)&a, &len) == 0 && a.sin_family == AF_INET;
}
static void *acts(void *unused) {
    while (!over) {
        strange += dup2(e.client, NUMBER) != NUMBER || !is_connected(NUMBER);
        int d = fcntl(e.client, F_DUPFD_CLOEXEC, MORE), f = dup(e.client);
        strange += !is_connected(d) || !is_connected(f);
        strange += close(NUMBER) || close(d) || close(f);
        cycles++;
    }
    return NULL;
}
int main(void) {
    int children = 0, whole = 0, arrived_well = 0, ended_well = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t t = set_off(acts);
        for (int n = 0; n < 3; n++) {
            pid_t pid = MUST(fork());
            if (pid == 0) {
                int open = fcntl(NUMBER, F_GETFD) != -1, more = fcntl(MORE, F_GETFD) != -1;
                _exit((open && !is_connected(NUMBER)) || (more && !is_connected(MORE)));
            }
            int status;
            MUST(waitpid(pid, &status, 0));
            children++, whole += status == 0;
        }
        call_off(t);
        char b[3] = {0};
        MUST(send(e.client, "abc", 3, 0));
        arrived_well += recv(e.server, b, 3, MSG_WAITALL) == 3 && memcmp(b, "abc", 3) == 0;
        MUST(close(e.client));
        struct pollfd p = {e.server, POLLIN};
        ended_well += poll(&p, 1, 20000) == 1 && recv(e.server, b, 1, 0) == 0;
        close(e.server);
    }
    say("children %d, whole %d, arrived %d, ended %d, strange %ld", children, whole, arrived_well, ended_well, strange);
}
