// pause keeps a pod's namespaces open. It sleeps until it receives a termination signal. As PID 1 of a pod with a shared process
// namespace it reaps orphaned processes.

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

int main(void) {
	sigset_t awaited;
	sigemptyset(&awaited);
	sigaddset(&awaited, SIGCHLD);
	sigaddset(&awaited, SIGINT);
	sigaddset(&awaited, SIGTERM);
	// Blocked signals wait for sigwait, so none is lost between two calls. A default action would not do: the kernel does not
	// apply it to the first process of a namespace.
	if (sigprocmask(SIG_BLOCK, &awaited, NULL) != 0)
		return EXIT_FAILURE;
	for (;;) {
		int received;
		if (sigwait(&awaited, &received) != 0)
			return EXIT_FAILURE;
		if (received != SIGCHLD)
			return EXIT_SUCCESS;
		// Several children that end together may send one signal.
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
