package identity

import (
	"context"
	"encoding/json"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/rbacrules"
)

// ClusterRoleAggregation sets the rules of aggregated ClusterRoles.
var ClusterRoleAggregation = controller.Definition{
	Name: "clusterrole-aggregation-controller", Aliases: []string{"clusterrole-aggregation"}, Queue: "ClusterRoleAggregator", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		roles := client.InformerFor[*rbacv1.ClusterRole](s.Informers)
		// Any role may be selected by any aggregated role.
		err := controller.Watch(s, func(*rbacv1.ClusterRole) []controller.Key {
			var keys []controller.Key
			for _, role := range roles.List("", nil) {
				if role.AggregationRule != nil {
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
			rules, err := rbacrules.Of(role, roles.List("", nil))
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
