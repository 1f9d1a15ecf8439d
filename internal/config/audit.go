package config

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
)

// Audit configures which requests are audited and where events are sent, with upstream's meanings. Without a policy, or with neither log nor
// webhook, nothing is audited.
type Audit struct {
	PolicyFile string
	Log        AuditLog
	Webhook    AuditWebhook
}

// AuditLog is the backend that writes events to a file, one line each; "-" is the standard output.
type AuditLog struct {
	Path string
	// MaxAge is in days, MaxSize in megabytes. 0 means no limit.
	MaxAge, MaxBackups, MaxSize int
	Compress                    bool
	Format                      string
	Version                     string
	BackendOptions              AuditBackendOptions
}

// AuditWebhook is the backend that sends batches of events to a web server.
type AuditWebhook struct {
	KubeconfigFile string
	InitialBackoff time.Duration
	Version        string
	BackendOptions AuditBackendOptions
}

// AuditBackendOptions configure how a backend delivers events.
type AuditBackendOptions struct {
	Mode                         string
	BufferSize, MaxSize          int
	MaxWait                      time.Duration
	Throttle                     bool
	QPS                          float64
	Burst                        int
	Truncate                     bool
	MaxEventBytes, MaxBatchBytes int64
}

const (
	auditVersion   = "audit.k8s.io/v1"
	auditModeBatch = "batch"
)

var auditModes = []string{auditModeBatch, "blocking", "blocking-strict"}

func defaultAudit() Audit {
	return Audit{
		Log: AuditLog{
			MaxAge: 366, MaxBackups: 100, MaxSize: 100, Format: "json", Version: auditVersion,
			BackendOptions: AuditBackendOptions{Mode: "blocking", BufferSize: 10000, MaxSize: 1, MaxEventBytes: 100 << 10, MaxBatchBytes: 10 << 20},
		},
		Webhook: AuditWebhook{
			InitialBackoff: 10 * time.Second, Version: auditVersion,
			BackendOptions: AuditBackendOptions{
				Mode: auditModeBatch, BufferSize: 10000, MaxSize: 400, MaxWait: 30 * time.Second, Throttle: true, QPS: 10, Burst: 15,
				MaxEventBytes: 100 << 10, MaxBatchBytes: 10 << 20,
			},
		},
	}
}

func (a *Audit) flags(groups *FlagGroups) {
	common, advanced := groups.Common(groupAudit), groups.Advanced(groupAudit)
	l, w := &a.Log, &a.Webhook
	common.StringVar(&a.PolicyFile, "audit-policy-file", a.PolicyFile, "Path to the audit Policy file, which defines the requests to audit. Required to audit at all.")
	common.StringVar(&l.Path, "audit-log-path", l.Path, "Path to the audit log file, or - for standard output.")
	common.StringVar(&w.KubeconfigFile, "audit-webhook-config-file", w.KubeconfigFile, "Path to a kubeconfig file for the web server to send audit events to.")
	advanced.IntVar(&l.MaxAge, "audit-log-maxage", l.MaxAge, "Maximum age of old audit log files in days. 0 means no limit.")
	advanced.IntVar(&l.MaxBackups, "audit-log-maxbackup", l.MaxBackups, "Maximum number of old audit log files. 0 means no limit.")
	advanced.IntVar(&l.MaxSize, "audit-log-maxsize", l.MaxSize, "Maximum size of an audit log file in megabytes before it is rotated. 0 means no limit.")
	advanced.BoolVar(&l.Compress, "audit-log-compress", l.Compress, "Compress rotated audit log files with gzip.")
	advanced.StringVar(&l.Format, "audit-log-format", l.Format, "Format of the audit log: json, or legacy for lines of text.")
	advanced.StringVar(&l.Version, "audit-log-version", l.Version, "API version of the events in the audit log.")
	l.BackendOptions.flags(advanced, "audit-log-")
	advanced.DurationVar(&w.InitialBackoff, "audit-webhook-initial-backoff", w.InitialBackoff, "Time to wait before retrying the first failed request.")
	advanced.DurationVar(&w.InitialBackoff, "audit-webhook-batch-initial-backoff", w.InitialBackoff, "Deprecated name of --audit-webhook-initial-backoff.")
	advanced.StringVar(&w.Version, "audit-webhook-version", w.Version, "API version of the events sent to the webhook.")
	w.BackendOptions.flags(advanced, "audit-webhook-")
}

func (d *AuditBackendOptions) flags(fs *pflag.FlagSet, prefix string) {
	fs.StringVar(&d.Mode, prefix+"mode", d.Mode,
		"How to send audit events: batch sends them in the background, blocking before the response, blocking-strict also fails the request if that fails.")
	fs.IntVar(&d.BufferSize, prefix+"batch-buffer-size", d.BufferSize, "Size of the buffer of events before batching. Only used in batch mode.")
	fs.IntVar(&d.MaxSize, prefix+"batch-max-size", d.MaxSize, "Maximum number of events in a batch. Only used in batch mode.")
	fs.DurationVar(&d.MaxWait, prefix+"batch-max-wait", d.MaxWait, "Time to wait before sending a batch that is not full. Only used in batch mode.")
	fs.BoolVar(&d.Throttle, prefix+"batch-throttle-enable", d.Throttle, "Limit the rate of batches. Only used in batch mode.")
	fs.Float64Var(&d.QPS, prefix+"batch-throttle-qps", d.QPS, "Maximum average number of batches per second. Only used in batch mode.")
	fs.IntVar(&d.Burst, prefix+"batch-throttle-burst", d.Burst, "Maximum number of batches sent at once if the rate was not used before. Only used in batch mode.")
	fs.BoolVar(&d.Truncate, prefix+"truncate-enabled", d.Truncate, "Truncate events and batches that are too large.")
	fs.Int64Var(&d.MaxEventBytes, prefix+"truncate-max-event-size", d.MaxEventBytes, "Maximum size of an event in bytes if truncating is enabled.")
	fs.Int64Var(&d.MaxBatchBytes, prefix+"truncate-max-batch-size", d.MaxBatchBytes, "Maximum size of a batch in bytes if truncating is enabled.")
}

func (a *Audit) validate() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--audit-"+flag+": "+format, args...))
	}
	if l := &a.Log; l.Path != "" {
		l.BackendOptions.validate("log-", fail)
		if l.Format != "json" && l.Format != "legacy" {
			fail("log-format", "%q is neither json nor legacy", l.Format)
		}
		if l.Version != auditVersion {
			fail("log-version", "%q is not %s", l.Version, auditVersion)
		}
		if l.MaxAge < 0 {
			fail("log-maxage", "must not be negative")
		}
		if l.MaxBackups < 0 {
			fail("log-maxbackup", "must not be negative")
		}
		if l.MaxSize < 0 {
			fail("log-maxsize", "must not be negative")
		}
	}
	if w := &a.Webhook; w.KubeconfigFile != "" {
		w.BackendOptions.validate("webhook-", fail)
		if w.Version != auditVersion {
			fail("webhook-version", "%q is not %s", w.Version, auditVersion)
		}
	}
	return errors.Join(errs...)
}

func (d *AuditBackendOptions) validate(prefix string, fail func(flag, format string, args ...any)) {
	if !slices.Contains(auditModes, d.Mode) {
		fail(prefix+"mode", "%q is none of %q", d.Mode, auditModes)
	}
	if d.Mode == auditModeBatch {
		if d.BufferSize <= 0 {
			fail(prefix+"batch-buffer-size", "must be positive")
		}
		if d.MaxSize <= 0 {
			fail(prefix+"batch-max-size", "must be positive")
		}
		if d.Throttle && d.QPS <= 0 {
			fail(prefix+"batch-throttle-qps", "must be positive")
		}
		if d.Throttle && d.Burst <= 0 {
			fail(prefix+"batch-throttle-burst", "must be positive")
		}
	}
	if d.MaxEventBytes <= 0 {
		fail(prefix+"truncate-max-event-size", "must be positive")
	}
	if d.MaxBatchBytes < d.MaxEventBytes {
		fail(prefix+"truncate-max-batch-size", "must not be less than the largest event")
	}
}
