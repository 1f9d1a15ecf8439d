package config

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"
)

// Audit says what is recorded of requests and where, with upstream's meanings. Without a policy, or with neither log nor webhook,
// nothing is.
type Audit struct {
	PolicyFile string
	Log        AuditLog
	Webhook    AuditWebhook
}

// AuditLog is the file that receives events as lines; "-" is the standard output.
type AuditLog struct {
	Path string
	// MaxAge is in days, MaxSize in megabytes. Zero: no limit.
	MaxAge, MaxBackups, MaxSize int
	Compress                    bool
	Format                      string
	Version                     string
	Delivery                    AuditDelivery
}

// AuditWebhook is the service that receives lists of events.
type AuditWebhook struct {
	ConfigFile     string
	InitialBackoff time.Duration
	Version        string
	Delivery       AuditDelivery
}

// AuditDelivery is how a back end sends events.
type AuditDelivery struct {
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
			Delivery: AuditDelivery{Mode: "blocking", BufferSize: 10000, MaxSize: 1, MaxEventBytes: 100 << 10, MaxBatchBytes: 10 << 20},
		},
		Webhook: AuditWebhook{
			InitialBackoff: 10 * time.Second, Version: auditVersion,
			Delivery: AuditDelivery{
				Mode: auditModeBatch, BufferSize: 10000, MaxSize: 400, MaxWait: 30 * time.Second, Throttle: true, QPS: 10, Burst: 15,
				MaxEventBytes: 100 << 10, MaxBatchBytes: 10 << 20,
			},
		},
	}
}

func (a *Audit) flags(fs *flag.FlagSet) {
	fs.StringVar(&a.PolicyFile, "audit-policy-file", a.PolicyFile, "audit Policy file: which requests are recorded, and how much of them")
	l := &a.Log
	fs.StringVar(&l.Path, "audit-log-path", l.Path, "file to record requests in; - is the standard output")
	fs.IntVar(&l.MaxAge, "audit-log-maxage", l.MaxAge, "days to keep old audit logs; 0: for ever")
	fs.IntVar(&l.MaxBackups, "audit-log-maxbackup", l.MaxBackups, "old audit logs to keep; 0: all")
	fs.IntVar(&l.MaxSize, "audit-log-maxsize", l.MaxSize, "megabytes after which a new audit log is begun; 0: never")
	fs.BoolVar(&l.Compress, "audit-log-compress", l.Compress, "compress old audit logs")
	fs.StringVar(&l.Format, "audit-log-format", l.Format, "json, or legacy for lines of text")
	fs.StringVar(&l.Version, "audit-log-version", l.Version, "API version of the events; there is one")
	l.Delivery.flags(fs, "audit-log-")
	w := &a.Webhook
	fs.StringVar(&w.ConfigFile, "audit-webhook-config-file", w.ConfigFile, "kubeconfig of the service that audit events are sent to")
	fs.DurationVar(&w.InitialBackoff, "audit-webhook-initial-backoff", w.InitialBackoff, "time before events are sent again that the service did not take")
	fs.DurationVar(&w.InitialBackoff, "audit-webhook-batch-initial-backoff", w.InitialBackoff, "old name of --audit-webhook-initial-backoff")
	fs.StringVar(&w.Version, "audit-webhook-version", w.Version, "API version of the events; there is one")
	w.Delivery.flags(fs, "audit-webhook-")
}

func (d *AuditDelivery) flags(fs *flag.FlagSet, prefix string) {
	fs.StringVar(&d.Mode, prefix+"mode", d.Mode, "batch sends many events at once and may lose some, blocking loses none, blocking-strict refuses requests that cannot be recorded")
	fs.IntVar(&d.BufferSize, prefix+"batch-buffer-size", d.BufferSize, "events that wait to be sent, in mode batch")
	fs.IntVar(&d.MaxSize, prefix+"batch-max-size", d.MaxSize, "events sent at once, in mode batch")
	fs.DurationVar(&d.MaxWait, prefix+"batch-max-wait", d.MaxWait, "time after which a batch is sent that is not full, in mode batch")
	fs.BoolVar(&d.Throttle, prefix+"batch-throttle-enable", d.Throttle, "bound the number of batches each second, in mode batch")
	fs.Float64Var(&d.QPS, prefix+"batch-throttle-qps", d.QPS, "batches each second on average, in mode batch")
	fs.IntVar(&d.Burst, prefix+"batch-throttle-burst", d.Burst, "batches at once after a quiet time, in mode batch")
	fs.BoolVar(&d.Truncate, prefix+"truncate-enabled", d.Truncate, "leave bodies out of events that are too large")
	fs.Int64Var(&d.MaxEventBytes, prefix+"truncate-max-event-size", d.MaxEventBytes, "bytes of the largest event when truncating")
	fs.Int64Var(&d.MaxBatchBytes, prefix+"truncate-max-batch-size", d.MaxBatchBytes, "bytes of the largest batch when truncating")
}

func (a *Audit) validate() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--audit-"+flag+": "+format, args...))
	}
	if l := &a.Log; l.Path != "" {
		l.Delivery.validate("log-", fail)
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
	if w := &a.Webhook; w.ConfigFile != "" {
		w.Delivery.validate("webhook-", fail)
		if w.Version != auditVersion {
			fail("webhook-version", "%q is not %s", w.Version, auditVersion)
		}
	}
	return errors.Join(errs...)
}

func (d *AuditDelivery) validate(prefix string, fail func(flag, format string, args ...any)) {
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
