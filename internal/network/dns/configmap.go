package dns

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"skiff/internal/client"
)

// followConfigMap applies the ConfigMap with the settings until ctx is done.
func (s *Server) followConfigMap(ctx context.Context) {
	named := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", ConfigMapName)}
	client.For[*corev1.ConfigMap](s.config.Client).Follow(ctx, ConfigMapNamespace, named, client.FollowHandler[*corev1.ConfigMap]{
		Replace: func(objects []*corev1.ConfigMap) bool {
			if len(objects) == 0 {
				s.setConfigMap(nil)
			} else {
				s.setConfigMap(objects[0])
			}
			return true
		},
		Apply: func(object *corev1.ConfigMap, deleted bool) bool {
			if deleted {
				object = nil
			}
			s.setConfigMap(object)
			return true
		},
		Fail: func(err error) {
			s.log.Warn("failed to watch the ConfigMap of the cluster's DNS", "name", ConfigMapName, "error", err)
		},
	})
}

// setConfigMap applies the settings of the ConfigMap; nil stands for one that does not exist. Invalid settings are not applied, the last
// valid ones stay in effect. A ConfigMap that is read again without a change is not applied again.
func (s *Server) setConfigMap(object *corev1.ConfigMap) {
	var data map[string]string
	if object != nil {
		data = object.Data
	}
	if maps.Equal(data, s.configData) {
		return
	}
	s.configData = data
	parsed, err := parseSettings(data, s.index.zone)
	if err != nil {
		s.log.Error("failed to apply the ConfigMap of the cluster's DNS", "namespace", ConfigMapNamespace, "name", ConfigMapName, "error", err)
		s.config.Events.Eventf(object, corev1.EventTypeWarning, "InvalidConfiguration", "The last valid settings stay in effect: %v", err)
		return
	}
	s.settings.Store(parsed)
	s.upstreamsChanged()
	if object != nil {
		s.log.Info("applied the ConfigMap of the cluster's DNS", "stubDomains", len(parsed.stubDomains), "upstreamNameservers", len(parsed.upstreams), "hosts", len(parsed.hosts))
	}
}
