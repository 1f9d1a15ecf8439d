package system

import (
	"log/slog"

	"skiff/internal/apiserver/audit"
	"skiff/internal/config"
	"skiff/internal/egress"
)

// newAuditor makes the auditor; nil when nothing is audited.
func newAuditor(c config.Audit, dial egress.DialFunc, log *slog.Logger) (*audit.Auditor, error) {
	return audit.New(audit.Config{
		PolicyFile: c.PolicyFile,
		Log: audit.Log{
			Path: c.Log.Path, MaxAge: c.Log.MaxAge, MaxBackups: c.Log.MaxBackups, MaxSize: c.Log.MaxSize,
			Compress: c.Log.Compress, Format: c.Log.Format, BackendOptions: audit.BackendOptions(c.Log.BackendOptions),
		},
		Webhook: audit.Webhook{
			KubeconfigFile: c.Webhook.KubeconfigFile, InitialBackoff: c.Webhook.InitialBackoff, BackendOptions: audit.BackendOptions(c.Webhook.BackendOptions), Dial: dial,
		},
	}, log)
}
