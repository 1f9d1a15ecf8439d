package identity

import (
	"context"
	"encoding/json"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/rbacrules"
)

// aggregatedRoles is the index of aggregated roles, and its only value.
const aggregatedRoles = "aggregated"

// ClusterRoleAggregation sets the rules of aggregated ClusterRoles.
var ClusterRoleAggregation = controller.Definition{
	Name: "clusterrole-aggregation-controller", Aliases: []string{"clusterrole-aggregation"}, Queue: "ClusterRoleAggregator", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		roles := client.InformerFor[*rbacv1.ClusterRole](s.Informers)
		err := roles.EnsureIndex(aggregatedRoles, func(role *rbacv1.ClusterRole) []string {
			if role.AggregationRule == nil {
				return nil
			}
			return []string{aggregatedRoles}
		})
		if err != nil {
			return nil, fmt.Errorf("index aggregated roles: %w", err)
		}
		if err := roles.EnsureLabelIndex(); err != nil {
			return nil, fmt.Errorf("index roles by label: %w", err)
		}
		err = controller.Watch(s, func(changed *rbacv1.ClusterRole) (keys []controller.Key) {
			// The index exists: it was added above.
			aggregated, _ := roles.ByIndex(aggregatedRoles, aggregatedRoles)
			for _, role := range aggregated {
				if role.Name == changed.Name || rbacrules.Selects(role, changed) {
					keys = append(keys, controller.KeyOf(role))
				}
			}
			return keys
		})
		if err != nil {
			return nil, err
		}
		return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
			role, ok := roles.Get("", key.Name)
			if !ok || role.AggregationRule == nil {
				return nil
			}
			rules, err := rbacrules.Of(role, func(selector labels.Selector) []*rbacv1.ClusterRole { return roles.List("", selector) })
			if err != nil || equality.Semantic.DeepEqual(rules, role.Rules) {
				return err
			}
			// Use server-side apply, so that others who apply the role do not conflict over its rules.
			written, err := client.For[*rbacv1.ClusterRole](s.Client).Patch(ctx, "", role.Name, client.RawPatch(client.ApplyPatch, applyRules(role.Name, rules)),
				client.WriteOptions{FieldManager: "clusterrole-aggregation-controller", Force: true})
			if err != nil {
				return fmt.Errorf("apply rules: %w", err)
			}
			s.RecordWrite(key, written)
			return nil
		}), nil
	},
}

// applyRules is an apply configuration with the rules only.
func applyRules(name string, rules []rbacv1.PolicyRule) []byte {
	data, err := json.Marshal(map[string]any{
		"apiVersion": rbacv1.SchemeGroupVersion.String(), "kind": "ClusterRole",
		"metadata": map[string]any{"name": name},
		"rules":    rules,
	})
	if err != nil {
		panic(err)
	}
	return data
}
