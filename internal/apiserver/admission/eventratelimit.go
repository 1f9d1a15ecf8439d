package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// eventRateLimit limits the rate of events per server, namespace, user, or source and object. It handles both API groups of events,
// which write the same objects. Off by default.
type eventRateLimit struct{ limits []*eventLimit }

// eventLimitConfig is a Configuration of eventratelimit.admission.k8s.io.
type eventLimitConfig struct {
	metav1.TypeMeta `json:",inline"`
	Limits          []struct {
		Type      string `json:"type"`
		QPS       int32  `json:"qps"`
		Burst     int32  `json:"burst"`
		CacheSize int32  `json:"cacheSize,omitempty"`
	} `json:"limits"`
}

// eventKeys returns the key of the token bucket of an event, by type of limit.
var eventKeys = map[string]func(a *Attributes) string{
	"Server":    func(*Attributes) string { return "" },
	"Namespace": func(a *Attributes) string { return a.Namespace },
	"User":      func(a *Attributes) string { return a.User.Username },
	"SourceAndObject": func(a *Attributes) string {
		event, ok := a.Object.(*corev1.Event)
		if !ok {
			return ""
		}
		object := event.InvolvedObject
		return strings.Join([]string{
			event.Source.Component, event.Source.Host, object.Kind, object.Namespace, object.Name, string(object.UID), object.APIVersion,
		}, "")
	},
}

// defaultEventCacheSize is the default number of token buckets of a limit.
const defaultEventCacheSize = 4096

type eventLimit struct {
	kind      string
	key       func(a *Attributes) string
	newBucket func() *rate.Limiter
	buckets   *lru.Cache
}

func newEventRateLimit(c *eventLimitConfig) (*eventRateLimit, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &eventRateLimit{}
	for _, l := range c.Limits {
		size := int(l.CacheSize)
		if size == 0 {
			size = defaultEventCacheSize
		}
		newBucket := func() *rate.Limiter { return rate.NewLimiter(rate.Limit(l.QPS), int(l.Burst)) }
		r.limits = append(r.limits, &eventLimit{kind: l.Type, key: eventKeys[l.Type], newBucket: newBucket, buckets: lru.New(size)})
	}
	return r, nil
}

func (c *eventLimitConfig) validate() error {
	path := field.NewPath("limits")
	if len(c.Limits) == 0 {
		return field.Invalid(path, c.Limits, "must not be empty")
	}
	var errs field.ErrorList
	var types []string
	for i, l := range c.Limits {
		idxPath := path.Index(i)
		if eventKeys[l.Type] == nil {
			errs = append(errs, field.NotSupported(idxPath.Child("type"), l.Type, []string{"Server", "Namespace", "User", "SourceAndObject"}))
		} else if slices.Contains(types, l.Type) {
			errs = append(errs, field.Duplicate(idxPath.Child("type"), l.Type))
		}
		types = append(types, l.Type)
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(idxPath.Child("burst"), l.Burst, "must be positive"))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(idxPath.Child("qps"), l.QPS, "must be positive"))
		}
		if l.CacheSize < 0 {
			errs = append(errs, field.Invalid(idxPath.Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
	}
	return errs.ToAggregate()
}

func (*eventRateLimit) Name() string { return "EventRateLimit" }

func (*eventRateLimit) Handles(a *Attributes) bool {
	return a.changes() && !a.DryRun && a.Resource.Resource == events.Resource && (a.Resource.Group == "" || a.Resource.Group == "events.k8s.io")
}

func (r *eventRateLimit) Validate(_ context.Context, a *Attributes) error {
	var errs []error
	for _, l := range r.limits {
		if key := l.key(a); !l.bucket(key).Allow() {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", l.kind, key))
		}
	}
	if len(errs) > 0 {
		return apierrors.NewTooManyRequestsError(utilerrors.NewAggregate(errs).Error())
	}
	return nil
}

// bucket returns the token bucket of a key. Two concurrent first calls may get different buckets.
func (l *eventLimit) bucket(key string) *rate.Limiter {
	if b, ok := l.buckets.Get(key); ok {
		return b.(*rate.Limiter)
	}
	b := l.newBucket()
	l.buckets.Add(key, b)
	return b
}
