package runtime

import (
	"encoding/json"
	"strings"
)

// sandboxCalls are the system calls of a sandbox's process: those of pause, and those of runc after it has set the filter: it drops
// capabilities, changes to the pod's user and group, closes files, waits for the start and executes pause. Calls that an architecture does
// not have are ignored.
const sandboxCalls = `
	rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack pause wait4 waitid exit exit_group restart_syscall
	execve execveat prctl capget capset setuid setgid setgroups setresuid setresgid setsid getuid getgid geteuid getegid getgroups getpid getppid gettid getpgrp
	chdir fchdir getcwd umask access faccessat faccessat2 open openat openat2 close close_range dup dup2 dup3 fcntl ioctl pipe2
	read pread64 readv write writev lseek stat lstat fstat newfstatat statx statfs fstatfs readlink readlinkat getdents64 fchown
	arch_prctl brk clone clone3 futex getrandom madvise membarrier mmap mprotect mremap munmap prlimit64 rseq sched_getaffinity sched_yield
	set_robust_list set_tid_address tgkill uname clock_gettime clock_nanosleep nanosleep timer_create timer_settime timer_delete
	epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 poll ppoll`

// sandboxProfile is the seccomp profile of sandboxes, in the format of the OCI runtime specification. It allows a quarter of the calls of
// the runtime's default profile, on the host's architecture only. That is safer, and faster: compiling the default profile takes runc
// longer than starting the process.
func sandboxProfile() []byte {
	type rule struct {
		Names  []string `json:"names"`
		Action string   `json:"action"`
	}
	// Strings always encode.
	profile, _ := json.Marshal(struct {
		DefaultAction string `json:"defaultAction"`
		Syscalls      []rule `json:"syscalls"`
	}{"SCMP_ACT_ERRNO", []rule{{strings.Fields(sandboxCalls), "SCMP_ACT_ALLOW"}}})
	return profile
}
