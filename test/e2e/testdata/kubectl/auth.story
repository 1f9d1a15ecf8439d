# Who may do what, and roles that are brought into the wanted form.
kubectl create namespace story-auth
kubectl auth whoami -o jsonpath='{.status.userInfo.username}'
kubectl auth whoami --as=ann --as-group=red -o yaml | grep -v creationTimestamp
kubectl auth reconcile -f roles.yaml --dry-run=client
kubectl auth reconcile -f roles.yaml --dry-run=server
kubectl -n story-auth get role,rolebinding
kubectl auth reconcile -f roles.yaml
kubectl auth reconcile -f roles.yaml
kubectl -n story-auth get role story-reader -o yaml | grep -v -e uid -e resourceVersion -e creationTimestamp
kubectl auth reconcile -f more.yaml
kubectl -n story-auth describe --show-events=false role story-reader
kubectl -n story-auth describe --show-events=false rolebinding story-readers
kubectl auth reconcile -f less.yaml
kubectl -n story-auth describe --show-events=false role story-reader
kubectl -n story-auth describe --show-events=false rolebinding story-readers
kubectl auth reconcile -f less.yaml --remove-extra-permissions --remove-extra-subjects
kubectl -n story-auth describe --show-events=false role story-reader
kubectl -n story-auth describe --show-events=false rolebinding story-readers
# The role of a binding cannot change: it is made anew.
kubectl auth reconcile -f other-role.yaml
kubectl -n story-auth get rolebinding story-readers -o jsonpath='{.roleRef.name}'
kubectl get clusterrole story-wide -o jsonpath='{.aggregationRule}'
kubectl auth reconcile -f configmap.yaml
sleep 2; kubectl auth can-i get pods -n story-auth --as=ann
kubectl auth can-i delete pods -n story-auth --as=ann
kubectl auth can-i get pods --all-namespaces --as=ann
kubectl auth can-i get pods/log -n story-auth --as=ann
kubectl auth can-i get configmaps/one -n story-auth --as=cid
kubectl auth can-i get configmaps/two -n story-auth --as=cid
kubectl auth can-i get nothings -n story-auth --as=ann
kubectl auth can-i get /healthz --as=ann
kubectl auth can-i get /metrics --as=ann
kubectl auth can-i '*' '*'
kubectl auth can-i --list -n story-auth --as=cid | sort
kubectl auth can-i --list --as=system:anonymous --as-group=system:unauthenticated | sort
kubectl -n story-auth get pods --as=ann
kubectl -n story-auth get secrets --as=ann
kubectl -n story-auth create role too-much --verb='*' --resource=secrets --as=ann
kubectl auth reconcile -f strong.yaml --as=dan
kubectl get clusterrole story-strong
kubectl get pods --as=ann --as-uid=7 --as-user-extra=scopes=all
kubectl delete namespace story-auth --wait=false
kubectl delete clusterrole story-wide story-roles
kubectl delete clusterrolebinding story-dans

-- roles.yaml --
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: story-reader, namespace: story-auth, labels: {a: b}}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: story-readers, namespace: story-auth}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: story-reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: story-wide}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {story: "true"}}]}
rules: []
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: story-roles}
rules:
- {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [create, get, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: story-dans}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: story-roles}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: dan}
-- more.yaml --
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: story-reader, namespace: story-auth}
rules:
- {apiGroups: [""], resources: [pods, services], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [one], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: story-readers, namespace: story-auth}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: story-reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: cid}
- {kind: ServiceAccount, name: robot, namespace: story-auth}
-- less.yaml --
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: story-reader, namespace: story-auth}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [one], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: story-readers, namespace: story-auth}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: story-reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: cid}
-- other-role.yaml --
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: story-readers, namespace: story-auth}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}
-- configmap.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: not-for-reconcile, namespace: story-auth}
-- strong.yaml --
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: story-strong}
rules:
- {apiGroups: ["*"], resources: ["*"], verbs: ["*"]}
