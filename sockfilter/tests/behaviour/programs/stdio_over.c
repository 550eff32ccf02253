/* A connection takes the place of a descriptor that the C library has a stream of, by each way to duplicate: the
 * streams then read and write the connection. */
#include "behaviour.h"

static int in, out;

static void over(struct ends e, int (*replaces)(int, int), const char *how) {
    int taken = MUST(replaces(e.server, 0)) == 0;
    taken &= MUST(replaces(e.server, 1)) == 1;
    close(e.server);
    clearerr(stdin), clearerr(stdout);
    char line[100] = "", answer[100] = "";
    send(e.client, "a question\n", 11, 0);
    char *got = fgets(line, sizeof line, stdin);
    int printed = printf("you said %s", line), flushed = fflush(stdout);
    /* Calls that do not go through a stream still work. */
    long wrote = write(1, "!\n", 2);
    MUST(recv(e.client, answer, printed + 2, MSG_WAITALL));
    shutdown(e.client, SHUT_WR);
    int over = fgets(line, sizeof line, stdin) == NULL && feof(stdin);
    MUST(dup2(in, 0)), MUST(dup2(out, 1));
    clearerr(stdin), clearerr(stdout);
    say("%s: %d %d, %d %d %ld, %s%d", how, taken, got != NULL, printed, flushed, wrote, answer, over);
    close(e.client);
}

static int by_dup3(int old, int new) { return dup3(old, new, 0); }
static int by_dup(int old, int new) { return close(new), dup(old); }
static int by_fcntl(int old, int new) { return close(new), fcntl(old, F_DUPFD, new); }
static int by_number(int old, int new) { return syscall(SYS_dup2, old, new); }

/* A stream of the program's own; in the list of streams it is one of several. */
static void other(struct ends e) {
    FILE *null = fopen("/dev/null", "r"), *file = fopen("/dev/zero", "r+"), *last = fopen("/dev/null", "r");
    MUST(dup2(e.server, fileno(file)));
    close(e.server);
    char line[100] = "";
    send(e.client, "to a file\n", 10, 0);
    TRY(fgets(line, sizeof line, file) != NULL);
    fseek(file, 0, SEEK_CUR);
    TRY(fprintf(file, "from a file"));
    TRY(fclose(file));
    TRY(recv(e.client, line, 11, MSG_WAITALL));
    say("%s", line);
    TRY(recv(e.client, line, 1, 0));
    fclose(null), fclose(last);
    close(e.client);
}

/* The standard error is not buffered. */
static void errors(struct ends e) {
    int err = MUST(fcntl(2, F_DUPFD, 100));
    MUST(dup2(e.server, 2));
    char got[6] = "";
    errno = ENOENT;
    perror("oops");
    MUST(recv(e.client, got, 5, MSG_WAITALL));
    MUST(dup2(err, 2));
    say("%s", got);
    close(e.client), close(e.server);
}

/* Duplicated before it is connected. */
static void before(void) {
    int s = listener(), c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = where(s);
    fflush(stdout);
    MUST(dup2(c, 1));
    MUST(connect(c, (struct sockaddr *)&a, sizeof a));
    int peer = MUST(accept(s, NULL, NULL));
    printf("connected"), fflush(stdout);
    char got[10] = "";
    MUST(recv(peer, got, 9, MSG_WAITALL));
    MUST(dup2(out, 1));
    say("%s", got);
}

int main(void) {
    in = MUST(fcntl(0, F_DUPFD, 100)), out = MUST(fcntl(1, F_DUPFD, 100));
    over(ends(), dup2, "dup2");
    over(ends(), by_dup3, "dup3");
    over(ends(), by_dup, "dup");
    over(ends(), by_fcntl, "fcntl");
    over(ends(), by_number, "by its number");
    other(ends());
    errors(ends());
    before();
}
