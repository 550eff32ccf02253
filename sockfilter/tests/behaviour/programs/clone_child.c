/* A child by the C library's clone() serves the connection, and its parent accepts the next: with memory of its own,
 * with the parent's memory, and on a small stack. */
#include "behaviour.h"

static struct ends e;
static int s;

static int serves(void *name) {
    char b[10] = "";
    if (read(e.server, b, 3) != 3 || write(e.server, name, strlen(name)) < 0) return 1;
    return strcmp(b, "ask") != 0;
}

static void child(char *name, int flags, size_t stack_len) {
    char *stack = aligned_alloc(16, stack_len), got[100] = "";
    pid_t parent_id = 0;
    e = ends_at(s);
    int pid = MUST(clone(serves, stack + stack_len, flags | CLONE_PARENT_SETTID | SIGCHLD, name, &parent_id));
    close(e.server);
    send(e.client, "ask", 3, 0);
    long n = recv(e.client, got, strlen(name), MSG_WAITALL);
    int status;
    MUST(waitpid(pid, &status, 0));
    say("%s: %ld %s, status %d, end %ld, %d", name, n, got, status, (long)recv(e.client, got, 1, 0), parent_id == pid);
    close(e.client);
    free(stack);
}

/* A child accepts for itself. */
static int accepts(void *unused) {
    int c = accept(s, NULL, NULL);
    return c < 0 || write(c, "child", 5) != 5;
}

int main(void) {
    s = listener();
    child("own memory", 0, 1 << 16);
    child("a small stack", 0, 1 << 13);
    child("shared memory", CLONE_VM, 1 << 16);
    struct ends again = ends_at(s);
    TRY(write(again.server, "parent", 6));
    char got[10] = "", *stack = malloc(1 << 16);
    TRY(recv(again.client, got, 6, MSG_WAITALL));
    int pid = MUST(clone(accepts, stack + (1 << 16), SIGCHLD, NULL)), c = dial(s), status;
    memset(got, 0, sizeof got);
    TRY(recv(c, got, 5, MSG_WAITALL));
    MUST(waitpid(pid, &status, 0));
    say("%s %d", got, status);
    errno = 0;
    TRY(clone(accepts, NULL, SIGCHLD, NULL));
    TRY(clone(NULL, stack + (1 << 16), SIGCHLD, NULL));
}
